//! Why a text is no trace.

use std::io;

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line is no operation.
    #[error("trace line {line}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong with it.
        source: LineError,
    },
    /// A line happens before the one above it.
    #[error("trace line {line}: time goes back from {from} to {to}")]
    TimeGoesBack {
        /// Which, from 1.
        line: usize,
        /// Time of the line above, in seconds since the start.
        from: u64,
        /// Its own.
        to: u64,
    },
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// It is not JSON, or not of this form.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A word of a comma list is none of those that there are.
    #[error(transparent)]
    Word(#[from] UnknownWord),
}

/// A word that a comma list does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{list} `{word}`: use {known}")]
pub struct UnknownWord {
    /// What the list is of.
    pub list: &'static str,
    /// The word.
    pub word: String,
    /// Those that there are.
    pub known: &'static str,
}
