//! One line on a terminal that says what runs and since when, once something takes longer than a second.
//!
//! For work that is not stopped to tell how far it is; commands that go name by name have [`super::progress`].

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::commands::Output;

/// Draws from a thread of its own; ends, and takes its line away, when dropped. Draws nothing where standard error is no
/// terminal, and with --quiet.
pub(super) struct Ticker {
    names: Option<Sender<String>>,
    thread: Option<JoinHandle<()>>,
    total: usize,
}

impl Ticker {
    /// For work in one part, which begins now.
    pub(super) fn of(output: &Output, name: &str) -> Self {
        let ticker = Self::new(output, 1);
        ticker.tell(name.to_owned());
        ticker
    }

    /// For `total` parts.
    pub(super) fn new(output: &Output, total: usize) -> Self {
        if output.quiet || !std::io::stderr().is_terminal() {
            return Self { names: None, thread: None, total };
        }
        let (names, inbox) = channel::<String>();
        let thread = std::thread::spawn(move || {
            let mut part: Option<(String, Instant)> = None;
            let began = Instant::now();
            loop {
                match inbox.recv_timeout(Duration::from_millis(500)) {
                    Ok(name) => part = Some((name, Instant::now())),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                if let Some((name, since)) = &part
                    && began.elapsed() >= Duration::from_secs(1)
                {
                    eprint!("\r\x1b[K{name} ({} s)", since.elapsed().as_secs());
                    let _ = std::io::stderr().flush();
                }
            }
            eprint!("\r\x1b[K");
            let _ = std::io::stderr().flush();
        });
        Self { names: Some(names), thread: Some(thread), total }
    }

    /// Part `number` (from 1) begins.
    pub(super) fn begin(&self, number: usize, name: &str) {
        self.tell(format!("{number} of {}: {name}", self.total));
    }

    fn tell(&self, text: String) {
        if let Some(names) = &self.names {
            // The thread ends with its receiver only after the sender is gone.
            let _ = names.send(text);
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.names = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
