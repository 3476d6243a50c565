//! Where trees come from.

mod host;
