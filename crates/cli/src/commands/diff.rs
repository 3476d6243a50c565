//! `blockyard diff FIRST SECOND`: the differences between two images or trees of files.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use blockyard_build::{Choice, Difference, Differences, Error, Tree, What};
use blockyard_device::ImagePath;
use blockyard_disk::{FileType, Timestamp};
use blockyard_inspect::units::counted;
use serde_json::{Value, json};

use super::build::image_of;
use super::{Output, image, ls, names};

/// Exit codes of diff(1).
const EXIT_DIFFERENT: u8 = 1;
const EXIT_TROUBLE: u8 = 2;

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = "\
Compares names, types, permissions, owners, modification times, sizes, link targets, device numbers, hard links, extended \
attributes with access control lists, flags of chattr and all bytes. Does not compare access times, inode numbers, or the positions of holes and \
blocks. An empty /lost+found counts as none. Two trees are equal if `blockyard build` makes the same image from them (it refuses a /lost+found with content).\n\n\
Text: one line per difference, which begins with the path. If a line has two values, the first is that of FIRST.\n\n\
JSON: one object per difference: path, what (only_in_first, only_in_second, type, permissions, user, group, modified, size, target, device, \
flags, attribute, linked_to, bytes), first, second; for an attribute also name; for bytes, instead of first and second, first_offset, ranges, bytes, parts (the first \
ranges: start, end).\n\n\
Exit codes: 0 equal, 1 different, 2 trouble.")]
pub(crate) struct Args {
    /// An image (IMAGE?offset=BYTES is a part of one), a directory, a tar archive, or a container
    /// image
    first: PathBuf,
    /// What to compare FIRST with; it may be of another kind
    second: PathBuf,
    /// Only tell by the exit code whether they differ; stop at the first difference
    #[arg(short = 'q', long)]
    brief: bool,
    /// Folder for the content of archives [default: TMPDIR, else /tmp]
    #[arg(long, value_name = "FOLDER")]
    tmpdir: Option<PathBuf>,
}

impl Args {
    /// Compares the two.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        match self.compare(output) {
            Ok(false) => Ok(ExitCode::SUCCESS),
            Ok(true) => Ok(ExitCode::from(EXIT_DIFFERENT)),
            Err(error) => {
                eprintln!("blockyard: {}", super::describe(&error));
                Ok(ExitCode::from(EXIT_TROUBLE))
            }
        }
    }

    /// Whether the two differ.
    fn compare(&self, output: &Output) -> Result<bool> {
        let [first, second] = [self.tree(&self.first)?, self.tree(&self.second)?];
        let mut count = 0u64;
        let (mut compared, mut is_cut) = (Ok(()), false);
        let is_mute = self.brief || output.mutes_text();
        let path = ImagePath::whole(&self.first);
        image::print(&path, is_mute, |out| {
            compared = Tree::compare(&first, &second, &mut |found| {
                count += 1;
                let told = if output.json { write_json(out, &found) } else { write_text(out, &found) };
                is_cut = self.brief || told.is_err();
                if is_cut { Err(Error::Output { path: PathBuf::new(), error: stop(told) }) } else { Ok(()) }
            });
            Ok(())
        })?;
        if !is_cut {
            compared?;
        }
        Ok(count > 0)
    }

    fn tree(&self, path: &Path) -> Result<Tree> {
        let spool = self.tmpdir.clone().unwrap_or_else(std::env::temp_dir);
        if path.is_dir() {
            return unpacked(Tree::read(path, 2)?, &spool);
        }
        if let Some(reader) = image_of(path)? {
            return Ok(Tree::read_image(Arc::clone(reader.device()), path, b"/")?);
        }
        let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
        unpacked(Tree::read_archive(file, path, &spool)?, &spool)
    }
}

fn stop(told: std::io::Result<()>) -> std::io::Error {
    told.err().unwrap_or_else(|| std::io::ErrorKind::Interrupted.into())
}

fn unpacked(tree: Tree, spool: &Path) -> Result<Tree> {
    if tree.is_container_image() { Ok(tree.unpack_container(&Choice::default(), spool)?) } else { Ok(tree) }
}

fn kind(kind: FileType) -> &'static str {
    ls::type_word(kind)
}

fn time(at: Timestamp) -> String {
    format!("{}.{:09}", at.seconds, at.nanoseconds)
}

fn shown(bytes: Option<&Vec<u8>>) -> String {
    bytes.map_or_else(|| "none".to_owned(), |bytes| format!("\"{}\"", bytes.escape_ascii()))
}

fn path_of(found: &Difference) -> Vec<u8> {
    [b"/", &found.path[..]].concat()
}

fn write_text(out: &mut dyn Write, found: &Difference) -> std::io::Result<()> {
    let told = match &found.what {
        What::OnlyInFirst(of) => format!("only in the first ({})", kind(*of)),
        What::OnlyInSecond(of) => format!("only in the second ({})", kind(*of)),
        What::Type(one, other) => format!("type {}, {}", kind(*one), kind(*other)),
        What::Permissions(one, other) => format!("permissions {one:04o}, {other:04o}"),
        What::User(one, other) => format!("user {one}, {other}"),
        What::Group(one, other) => format!("group {one}, {other}"),
        What::Modified(one, other) => format!("time {}, {}", time(*one), time(*other)),
        What::Size(one, other) => format!("size {one}, {other}"),
        What::Target(one, other) => format!("target {}, {}", shown(Some(one)), shown(Some(other))),
        What::Device(one, other) => format!("device {}:{}, {}:{}", one.0, one.1, other.0, other.1),
        What::Flags(one, other) => format!("flags {one:#x}, {other:#x}"),
        What::Attribute(name, one, other) => {
            let name = name.escape_ascii();
            format!("attribute {name}: {}, {}", shown(one.as_ref()), shown(other.as_ref()))
        }
        What::LinkedTo(one, other) => {
            format!("a link to {}, {}", shown(one.as_ref()), shown(other.as_ref()))
        }
        What::Bytes(found) => bytes_text(found),
    };
    out.write_all(&names::bytes(&path_of(found)))?;
    writeln!(out, ": {told}")
}

fn bytes_text(found: &Differences) -> String {
    let first = found.ranges.first().map_or(0, |range| range.start);
    let ranges: Vec<String> =
        found.ranges.iter().map(|range| format!("{}-{}", range.start, range.end - 1)).collect();
    let more = if found.count > u64::try_from(ranges.len()).unwrap_or(u64::MAX) { ", ..." } else { "" };
    format!(
        "content from byte {first} on: {} in {}: {}{more}",
        counted(found.bytes, "byte"),
        counted(found.count, "range"),
        ranges.join(", ")
    )
}

fn write_json(out: &mut dyn Write, found: &Difference) -> std::io::Result<()> {
    let pair = |what: &str, one: Value, other: Value| json!({"what": what, "first": one, "second": other});
    let bytes = |bytes: Option<&Vec<u8>>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let object = match &found.what {
        What::OnlyInFirst(of) => pair("only_in_first", json!(kind(*of)), Value::Null),
        What::OnlyInSecond(of) => pair("only_in_second", Value::Null, json!(kind(*of))),
        What::Type(one, other) => pair("type", json!(kind(*one)), json!(kind(*other))),
        What::Permissions(one, other) => {
            pair("permissions", json!(format!("{one:04o}")), json!(format!("{other:04o}")))
        }
        What::User(one, other) => pair("user", json!(one), json!(other)),
        What::Group(one, other) => pair("group", json!(one), json!(other)),
        What::Modified(one, other) => pair("modified", json!(time(*one)), json!(time(*other))),
        What::Size(one, other) => pair("size", json!(one), json!(other)),
        What::Target(one, other) => {
            let object = json!({"what": "target"});
            names::with(names::with(object, "first", one), "second", other)
        }
        What::Device(one, other) => pair("device", json!([one.0, one.1]), json!([other.0, other.1])),
        What::Flags(one, other) => pair("flags", json!(one), json!(other)),
        What::Attribute(name, one, other) => {
            let hex = |value: &Option<Vec<u8>>| json!(value.as_ref().map(|value| names::hexadecimal(value)));
            names::with(pair("attribute", hex(one), hex(other)), "name", name)
        }
        What::LinkedTo(one, other) => {
            pair("linked_to", json!(bytes(one.as_ref())), json!(bytes(other.as_ref())))
        }
        What::Bytes(found) => {
            let parts: Vec<Value> =
                found.ranges.iter().map(|range| json!({"start": range.start, "end": range.end})).collect();
            let first = found.ranges.first().map(|range| range.start);
            json!({"what": "bytes", "first_offset": first, "ranges": found.count, "bytes": found.bytes, "parts": parts})
        }
    };
    writeln!(out, "{}", names::with(object, "path", OsStr::from_bytes(&path_of(found)).as_bytes()))
}
