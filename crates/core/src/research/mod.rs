//! Schemes that the ring is measured against: those of the research, and no protection at all. The default path names none
//! of them.

pub mod auto;
pub mod dash;
pub mod in_page;
pub mod off;
pub mod place;
pub mod roll_back;
pub mod trailer;
pub mod undo;
