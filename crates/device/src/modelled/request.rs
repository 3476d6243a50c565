//! Requests to a device, and their text: one per line, such as `read 4096 8192` (kind, first byte,
//! bytes).

use std::fmt;
use std::str::FromStr;

/// What a device is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// Read bytes; the caller waits.
    Read,
    /// Write bytes; nobody waits.
    Write,
    /// Write bytes and report when they are durable.
    DurableWrite,
    /// Forget bytes.
    Discard,
    /// Make durable what was written.
    Flush,
}

/// Every kind with its word.
const WORDS: [(RequestKind, &str); 5] = [
    (RequestKind::Read, "read"),
    (RequestKind::Write, "write"),
    (RequestKind::DurableWrite, "write-durable"),
    (RequestKind::Discard, "discard"),
    (RequestKind::Flush, "flush"),
];

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The kind.
    pub kind: RequestKind,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub length: u64,
}

impl Request {
    /// A read.
    #[must_use]
    pub const fn read(offset: u64, length: u64) -> Self {
        Self { kind: RequestKind::Read, offset, length }
    }

    /// A write that nobody waits for.
    #[must_use]
    pub const fn write(offset: u64, length: u64) -> Self {
        Self { kind: RequestKind::Write, offset, length }
    }

    /// The byte after the last.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = WORDS.iter().find(|(kind, _)| *kind == self.kind).map_or("", |(_, word)| word);
        write!(f, "{word} {} {}", self.offset, self.length)
    }
}

/// A line that is not a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the trace is not a request (kind, first byte, bytes): {text:?}")]
pub struct BadTrace {
    /// Its number, from 1.
    pub line: usize,
    /// Its text.
    pub text: String,
}

/// Requests in order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestTrace {
    requests: Vec<Request>,
}

impl RequestTrace {
    /// A trace of these requests.
    #[must_use]
    pub const fn new(requests: Vec<Request>) -> Self {
        Self { requests }
    }

    /// The requests.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }
}

impl fmt::Display for RequestTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.requests.iter().try_for_each(|request| writeln!(f, "{request}"))
    }
}

impl FromStr for RequestTrace {
    type Err = BadTrace;

    fn from_str(text: &str) -> Result<Self, BadTrace> {
        let parse = |(index, line): (usize, &str)| {
            request(line).ok_or_else(|| BadTrace { line: index + 1, text: line.to_owned() })
        };
        Ok(Self { requests: text.lines().enumerate().map(parse).collect::<Result<_, _>>()? })
    }
}

fn request(line: &str) -> Option<Request> {
    let mut words = line.split(' ');
    let word = words.next()?;
    let (kind, _) = WORDS.iter().find(|(_, known)| *known == word)?;
    let (offset, length): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    offset.checked_add(length)?;
    words.next().is_none().then_some(Request { kind: *kind, offset, length })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_what_its_text_says() {
        let all = WORDS.map(|(kind, _)| Request { kind, offset: 4096, length: 512 });
        let trace = RequestTrace::new(all.to_vec());
        assert_eq!(trace.to_string().parse(), Ok(trace));
        for bad in ["read 1", "read 1 2 3", "red 1 2", "read -1 2", "", "read 18446744073709551615 1"] {
            let text = format!("flush 0 0\n{bad}\n");
            assert_eq!(text.parse::<RequestTrace>().unwrap_err().line, 2, "{bad}");
        }
    }
}
