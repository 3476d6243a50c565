//! Where the server of a mount logs: to a file if one is given. Otherwise, it logs to standard
//! error in the foreground, and to the system log in the background.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The socket of the system log.
const SYSTEM_LOG: &str = "/dev/log";
/// The facility of daemons in the system log, as part of a priority number.
const DAEMONS: u8 = 3 << 3;

/// The destination of log lines.
enum Sink {
    Standard,
    File(File),
    System(UnixDatagram),
    Nowhere,
}

static SINK: OnceLock<Sink> = OnceLock::new();

/// Sends all log lines to the file from now on. Without a file they go to standard error or, in the
/// background, to the system log. In the background without a system log, they are lost.
///
/// # Errors
/// The file cannot be opened.
pub(super) fn begin(file: Option<&Path>, in_background: bool) -> io::Result<()> {
    let sink = match file {
        Some(path) => Sink::File(OpenOptions::new().create(true).append(true).open(path)?),
        None if in_background => system().map_or(Sink::Nowhere, Sink::System),
        None => Sink::Standard,
    };
    if SINK.set(sink).is_ok() {
        // No other code sets the global subscriber, so this cannot fail.
        let _ = tracing::subscriber::set_global_default(Lines::default());
    }
    Ok(())
}

/// Logs the error that ends the server, unless it goes to the terminal anyway.
pub(super) fn error(text: &str) {
    if !matches!(SINK.get(), Some(Sink::Standard)) {
        write(Level::ERROR, text);
    }
}

fn system() -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect(SYSTEM_LOG).ok().map(|()| socket)
}

fn write(level: Level, text: &str) {
    let name = match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        _ => "info",
    };
    let process = std::process::id();
    // A failed write cannot be reported anywhere.
    let _ = match SINK.get() {
        Some(Sink::Standard) => writeln!(io::stderr(), "blockyard: {name}: {text}"),
        Some(Sink::File(file)) => {
            let mut file = file;
            // In one write, because several processes may share the file.
            file.write_all(format!("blockyard[{process}]: {name}: {text}\n").as_bytes())
        }
        Some(Sink::System(socket)) => {
            let severity = match level {
                Level::ERROR => 3,
                Level::WARN => 4,
                _ => 6,
            };
            text.lines().try_for_each(|line| {
                let line = format!("<{}>blockyard[{process}]: {name}: {line}", DAEMONS | severity);
                socket.send(line.as_bytes()).map(drop)
            })
        }
        Some(Sink::Nowhere) | None => Ok(()),
    };
}

/// Writes each event as a line; spans are ignored.
#[derive(Default)]
struct Lines {
    spans: AtomicU64,
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // Relaxed: it only matters that the numbers differ.
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        write(*event.metadata().level(), &format!("{}{}", text.message, text.fields));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event's message, followed by its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, ", {}: {value:?}", field.name())
        };
    }
}
