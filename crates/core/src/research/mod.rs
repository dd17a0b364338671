//! Schemes that the ring is measured against: those of the research, and no protection at all. The table of schemes alone names
//! them; [`place`] is the commit in place of the in-page schemes.

pub mod dash;
pub mod in_page;
pub mod off;
pub mod place;
pub mod roll_back;
pub mod trailer;
pub mod undo;
