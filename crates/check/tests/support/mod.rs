//! Trees of images, and what a repair keeps of them.

#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod base;
pub(crate) mod draw;
pub(crate) mod judge;
pub(crate) mod kept;
