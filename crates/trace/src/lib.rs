//! Operation traces: JSON Lines with one operation each. Paths start at the root of the image.
//!
//! ```json
//! {"op":"mkdir","path":"/a","mode":493}
//! {"op":"open","fd":1,"path":"/a/f","flags":"rw,create"}
//! {"op":"pwrite","fd":1,"off":0,"len":4096}
//! {"op":"fallocate","fd":1,"mode":"keep_size","off":0,"len":8192,"worker":1,"at":30}
//! {"op":"sync"}
//! ```
//!
//! Every line may have `worker`, the CPU slot of the worker that acts (default 0), and `at`, the
//! virtual time in seconds. Time never goes back; a line without `at` has the time of the line
//! before. Traces recorded from a mount also have `us` and `errno` ([`Line`]).
//!
//! A trace holds no file content. A player (a program that carries out a trace) computes the
//! content from the path by which the file was opened, the offset and the seed ([`content`]).
//! Operations that fail are part of a trace: a player answers each of them with an errno, so that
//! the answers of two players can be compared.

#![forbid(unsafe_code)]

pub mod content;
mod error;
mod flags;
mod operation;
mod text;

pub use error::{Error, LineError, UnknownWord};
pub use flags::{FallocateMode, OpenFlags};
pub use operation::{Line, Op};
pub use text::{read, write};
