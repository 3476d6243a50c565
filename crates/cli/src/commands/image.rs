//! What the commands share: opening an image, refusing what cannot be one, output that survives a
//! closed pipe, and text for UUIDs and fixed-size fields.

use std::ffi::OsString;
use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use blockyard_device::{BadOffset, BlockDevice, FileDevice, ImagePath, PartitionTable, in_use};
use blockyard_disk::partition::Partition;
use blockyard_disk::superblock;
use blockyard_disk::{FileType, Inode};
use blockyard_engine::Refusal;
use blockyard_inspect::reader::{Error, Reader};
use blockyard_recovery::{Options, replay_into_overlay};
use clap::builder::{OsStringValueParser, TypedValueParser};
use rustix::fs::Access;

use super::{host, mounted};
use crate::terminal::Guard;

/// Offset of `s_magic`: byte 0x38 of the superblock, which begins at byte 1024.
const MAGIC_AT: u64 = 1024 + 0x38;

/// Exit code if a path does not exist in the image, or is not a file where one is needed.
pub(super) const EXIT_NOT_FOUND: u8 = 1;

/// What to do about an image that is too damaged to open.
pub(super) const DAMAGED: &str = "; `blockyard check -n` tells more, `blockyard check -y` repairs";

/// Exit codes of the reading commands, for the help.
pub(super) const EXIT_CODES: &str = "Exit codes: 0 done, 1 the path does not exist or has the wrong type, 2 wrong usage, 8 the image cannot \
                                     be read.";

/// Parses the IMAGE operand: a path, or `PATH?offset=BYTES`.
pub(super) fn operand() -> impl TypedValueParser<Value = ImagePath> {
    OsStringValueParser::new().try_map(|given: OsString| -> Result<_, BadOffset> { ImagePath::parse(&given) })
}

/// Opens an image without replaying its journal, for commands that show metadata.
pub(super) fn open_as_is(path: &ImagePath) -> Result<Reader> {
    let device = device(path, false)?;
    let opened = Reader::open(Arc::new(device));
    opened.map_err(|error| {
        let hint = if error.corruption().is_some() { DAMAGED } else { "" };
        anyhow::anyhow!("{}: {error}{hint}", path.display())
    })
}

/// Opens the file or block device, for writing too if the command `changes` it. Refuses anything
/// that holds no ext file system, and says what to do instead.
pub(super) fn device(path: &ImagePath, changes: bool) -> Result<FileDevice> {
    let shown = path.display();
    refuse_no_image(path)?;
    if let Err(errno) = rustix::fs::access(path.file(), Access::READ_OK) {
        bail!("{shown}: {}; it must be readable", io::Error::from(errno));
    }
    let device = path.open_read_only()?;
    if !has_magic(&device) {
        refuse_partitioned(path, &device)?;
        bail!("{shown}: {}", Refusal::NoFileSystem);
    }
    if !changes {
        mounted::warn(path);
        return Ok(device);
    }
    if let Err(errno) = rustix::fs::access(path.file(), Access::WRITE_OK) {
        bail!("{shown}: {}; it must be writable to be changed", io::Error::from(errno));
    }
    refuse_in_use(path)?;
    Ok(path.open()?)
}

/// Whether the magic number of an ext2, ext3 or ext4 superblock is in its place.
pub(super) fn has_magic(device: &dyn BlockDevice) -> bool {
    holds_ext_at(device, 0)
}

fn holds_ext_at(device: &dyn BlockDevice, offset: u64) -> bool {
    let mut magic = [0; 2];
    let read = offset.checked_add(MAGIC_AT).map(|at| device.read_at(at, &mut magic));
    matches!(read, Some(Ok(()))) && u16::from_le_bytes(magic) == superblock::MAGIC
}

/// Refuses a partitioned disk, because the user must choose a partition. The error shows how to
/// name each partition that holds an ext file system or has a Linux type.
pub(super) fn refuse_partitioned(path: &ImagePath, device: &FileDevice) -> Result<()> {
    let Some(table) = PartitionTable::read(device, device.sector_bytes())? else { return Ok(()) };
    if table.partitions.is_empty() {
        return Ok(());
    }
    let shown = path.display();
    let describe = |partition: &Partition| {
        let holds_ext = holds_ext_at(device, partition.first_byte);
        (holds_ext || partition.kind.is_linux()).then(|| {
            let mib = partition.bytes >> 20;
            let name =
                if partition.name.is_empty() { String::new() } else { format!(" {:?}", partition.name) };
            let kind = if holds_ext { "ext" } else { "no ext file system" };
            format!(
                "{shown}?offset={} (partition {}{name}, {mib} MiB, {kind})",
                partition.first_byte, partition.number
            )
        })
    };
    let linux: Vec<String> = table.partitions.iter().filter_map(describe).collect();
    let table = format!("a disk with a {} partition table", table.kind.name());
    if linux.is_empty() {
        bail!(
            "{shown}: {table}, none of whose partitions is Linux's; ?offset=BYTES after the path chooses one"
        );
    }
    bail!("{shown}: {table}; choose a partition: {}", linux.join(", "))
}

/// Refuses a path that cannot hold an image, and says what to do instead.
pub(super) fn refuse_no_image(path: &ImagePath) -> Result<()> {
    let shown = path.display();
    match std::fs::metadata(path.file()) {
        Ok(data) if data.is_dir() => bail!("{shown}: is a directory; an image or a block device is needed"),
        Ok(data) if data.is_file() && data.len() == 0 => {
            bail!("{shown}: {}", Refusal::Empty)
        }
        Ok(data) if !data.is_file() && !data.file_type().is_block_device() => {
            bail!("{shown}: neither a regular file nor a block device; an image is needed")
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{shown}: no such file; `blockyard mkfs` makes an image")
        }
        Err(error) => bail!("{shown}: {error}"),
        Ok(_) => Ok(()),
    }
}

/// Opens an image for commands that show files. A journal that needs recovery is replayed in
/// memory. If that fails, a note says why, and the state before the replay is shown.
pub(super) fn open(path: &ImagePath) -> Result<Reader> {
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

/// Standard output that remembers a write error, so that it is not mistaken for an error of the
/// image.
struct Output {
    out: BufWriter<Guard<StdoutLock<'static>>>,
    failed: Option<ErrorKind>,
}

impl Output {
    fn note<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        done.inspect_err(|error| self.failed = Some(error.kind()))
    }
}

impl Write for Output {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let done = self.out.write(buf);
        self.note(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.out.flush();
        self.note(done)
    }
}

/// Runs `body` with buffered standard output (escaped on a terminal, see [`Guard`]), or with none
/// if `is_mute`, and turns its result into an exit code. A closed pipe is success, because the
/// reader has seen enough. A path in the image that is missing or of the wrong type gives
/// [`EXIT_NOT_FOUND`]. Other errors are returned.
pub(super) fn print(
    path: &ImagePath,
    is_mute: bool,
    body: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<ExitCode> {
    let mut output = Output { out: BufWriter::new(Guard::new(io::stdout().lock())), failed: None };
    let done = if is_mute { body(&mut io::sink()) } else { body(&mut output) };
    // Output from before an error is shown too.
    let flushed = output.flush();
    let done = done.and_then(|()| Ok(flushed?));
    let failed = output.failed;
    // After an error, the rest of the buffer must not be written to a closed pipe on drop.
    let _ = output.out.into_parts();
    match (done, failed) {
        (Ok(()), _) | (_, Some(ErrorKind::BrokenPipe)) => Ok(ExitCode::SUCCESS),
        (Err(error), Some(_)) => Err(error.context("standard output")),
        (Err(error), None) if is_not_found(&error) => {
            eprintln!("blockyard: {}: {}", path.display(), super::describe(&error));
            Ok(ExitCode::from(EXIT_NOT_FOUND))
        }
        (Err(error), None) => Err(error.context(path.display().to_string())),
    }
}

fn is_not_found(error: &anyhow::Error) -> bool {
    error.is::<NoFile>() || matches!(error.downcast_ref(), Some(Error::NotFound(_) | Error::NotDirectory(_)))
}

/// A path that leads to something other than a regular file.
#[derive(Debug, thiserror::Error)]
#[error("not a regular file: {0}")]
struct NoFile(String);

/// Refuses anything but a regular file.
pub(super) fn expect_file(inode: &Inode, path: &[u8]) -> Result<()> {
    if inode.file_type() == FileType::Regular {
        return Ok(());
    }
    Err(NoFile(String::from_utf8_lossy(path).into_owned()).into())
}

/// Refuses a file behind a loop device, because the loop device may be mounted. (Block devices are
/// opened exclusively, which fails if they are mounted.)
pub(super) fn refuse_in_use(image: &ImagePath) -> Result<()> {
    match in_use::loop_device_of(image.file()) {
        Some(device) => bail!("{}: in use by {}; detach it first", image.display(), device.display()),
        None => Ok(()),
    }
}

/// Refuses to write a result over the image that it was made from.
pub(super) fn refuse_same(image: &ImagePath, target: &Path) -> Result<()> {
    let place = |path| std::fs::metadata(path).map(|data| (data.dev(), data.ino())).ok();
    if place(target).is_some_and(|there| place(image.file()) == Some(there)) {
        return Err(host::refused(target, "is the image itself; give another name"));
    }
    Ok(())
}

/// The bytes of a path from the command line.
pub(super) fn path_bytes(path: &std::ffi::OsStr) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path)
}

/// A UUID in the usual form.
pub(super) fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// The bytes of a fixed-size field before the first NUL.
pub(super) fn padded(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_fields_as_text() {
        assert_eq!(padded(b"abc\0def"), b"abc");
        assert_eq!(padded(b"full"), b"full");
        let bytes =
            [0x0B, 0xB1, 0x22, 0x82, 0xA7, 0xC0, 0x4E, 0x0F, 0xAC, 0x8F, 0xA2, 0x97, 0x47, 0x2A, 0xCE, 0xDA];
        assert_eq!(uuid(&bytes), "0bb12282-a7c0-4e0f-ac8f-a297472aceda");
    }
}
