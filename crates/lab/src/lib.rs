//! Workloads, policies and geometries measured; agreement with the kernel.

pub mod frag;
