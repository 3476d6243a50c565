//! What the reading commands share: opening an image, output that stands a closed pipe, text of numbers and names.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use blockyard_device::FileDevice;
use blockyard_engine::reader::{Error, Reader};
use blockyard_recovery::{Options, replay_into_overlay};

/// Exit code when a path does not exist in the image.
pub(super) const EXIT_NOT_FOUND: u8 = 1;

/// Exit codes of the reading commands, for their help.
pub(super) const EXIT_CODES: &str = "Exit codes: 0 done, 1 the path does not exist, 2 wrong usage, 8 the image cannot \
                                     be read.";

/// Opens an image as it stands, for commands that show its metadata.
pub(super) fn open_as_is(path: &Path) -> Result<Reader> {
    let device =
        FileDevice::open_read_only(path).with_context(|| format!("cannot open {}", path.display()))?;
    Reader::open(Arc::new(device)).with_context(|| path.display().to_string())
}

/// Opens an image for commands that show files: a journal that needs recovery is replayed in memory. When that is not
/// possible a note says why, and the state before the replay is shown.
pub(super) fn open(path: &Path) -> Result<Reader> {
    let reader = open_as_is(path)?;
    if !reader.superblock().needs_recovery() {
        return Ok(reader);
    }
    match replay_into_overlay(Arc::clone(reader.device()), &Options::default()) {
        Ok((overlay, _)) => Reader::open(Arc::new(overlay)).with_context(|| path.display().to_string()),
        Err(error) => {
            eprintln!(
                "blockyard: {}: note: the journal was not replayed, this is the state before it: {error}",
                path.display()
            );
            Ok(reader)
        }
    }
}

/// Runs `body` with buffered standard output and turns its end into an exit code: a reader that closed the pipe has
/// seen enough, and a path that does not exist has a code of its own.
pub(super) fn print(path: &Path, body: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<ExitCode> {
    let mut out = BufWriter::new(io::stdout().lock());
    let done = body(&mut out);
    // What was printed before an error is shown too.
    let flushed = out.flush();
    let done = done.and_then(|()| Ok(flushed?));
    // What is left in the buffer after an error must not be written once more on drop to a pipe that is closed.
    let _ = out.into_parts();
    match done {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if is_closed_pipe(&error) => Ok(ExitCode::SUCCESS),
        Err(error) if is_not_found(&error) => {
            eprintln!("blockyard: {}: {}", path.display(), super::describe(&error));
            Ok(ExitCode::from(EXIT_NOT_FOUND))
        }
        Err(error) => Err(error.context(path.display().to_string())),
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn is_not_found(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::NotFound(_) | Error::NotDirectory(_)))
}

/// Refuses a file that a loop device shows: what stands on it may be mounted. (Block devices are opened exclusively,
/// which fails when they are mounted.)
pub(super) fn refuse_in_use(image: &Path) -> Result<()> {
    let (Ok(image_path), Ok(devices)) = (image.canonicalize(), std::fs::read_dir("/sys/block")) else {
        return Ok(());
    };
    for device in devices.flatten() {
        let backing = std::fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        if Path::new(backing.trim_end()) == image_path {
            let device = device.file_name();
            bail!("{}: in use by /dev/{}; detach it first", image.display(), device.to_string_lossy());
        }
    }
    Ok(())
}

/// The bytes of a path given on the command line.
pub(super) fn path_bytes(path: &std::ffi::OsStr) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path)
}

/// A UUID in the usual form.
pub(super) fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// The text before the first NUL of a fixed field.
pub(super) fn padded(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_fields_as_text() {
        assert_eq!(padded(b"abc\0def"), "abc");
        assert_eq!(padded(b"full"), "full");
        let bytes =
            [0x0B, 0xB1, 0x22, 0x82, 0xA7, 0xC0, 0x4E, 0x0F, 0xAC, 0x8F, 0xA2, 0x97, 0x47, 0x2A, 0xCE, 0xDA];
        assert_eq!(uuid(&bytes), "0bb12282-a7c0-4e0f-ac8f-a297472aceda");
    }
}
