//! Schemes of the research, to compare the ring with, and no protection at all. Only the table of
//! schemes names them; two share [`place`].

pub mod auto;
pub mod dash;
pub mod in_page;
pub mod off;
pub mod place;
pub mod roll_back;
pub mod trailer;
pub mod undo;
