//! Operation traces: made from seeds, recorded from directory trees, and played.

pub mod make;
pub mod play;
pub mod record;
