//! Errors of reading a trace.

use std::io;

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line does not hold an operation.
    #[error("trace line {line}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// What is wrong with it.
        source: LineError,
    },
    /// A line has an earlier time than the lines above it.
    #[error("trace line {line}: time goes back from {from} to {to}")]
    TimeGoesBack {
        /// Line number, from 1.
        line: usize,
        /// Time of the lines above, in seconds since the start.
        from: u64,
        /// Time of this line.
        to: u64,
    },
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// It is not JSON, or its fields are not those of an operation.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A comma-separated list of flags has an unknown word.
    #[error(transparent)]
    Word(#[from] UnknownWord),
}

/// An unknown word in a comma-separated list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{list} `{word}`: use {known}")]
pub struct UnknownWord {
    /// What the list contains.
    pub list: &'static str,
    /// The word.
    pub word: String,
    /// The words that exist.
    pub known: &'static str,
}
