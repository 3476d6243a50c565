//! `blockyard export IMAGE DEST`: turns an image into a directory, a tar archive or a container
//! image, with owners, permissions, times, attributes, links and holes.

use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use blockyard_build::{Compression, ContainerOptions, Exported, Platform, Rules, Tree};
use blockyard_device::ImagePath;
use blockyard_disk::Timestamp;
use blockyard_disk::num::u64_from_usize;
use serde_json::json;

use super::get;
use super::progress::Progress;
use super::put::copied;
use super::{Output, UsageError, host, image, interrupt, names, partial};

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = "\
Owners, permissions, modification times in nanoseconds, extended attributes, access control lists, capabilities, hard \
links, devices, pipes, sockets, holes and flags of chattr are kept; `blockyard build` of an export gives the content of the image again. An \
empty /lost+found is left out.\n\n\
In archives, access times are kept too (atime), but few programs extract them, and blockyard build ignores them. Archives \
have no type for sockets: a socket is stored as a pipe with a keyword of the program star.\n\n\
In a directory, only what the host lets the user set is kept: run as root to keep owners and devices. Whatever the \
image holds, nothing is written outside DEST, and names that no file can have are refused.\n\n\
GNU tar extracts an archive with --xattrs --xattrs-include='*' --acls.\n\n\
JSON: one object: image, path, to, as, names, bytes (content of files, without their holes), seconds. If DEST is a directory, the objects are those of blockyard get.\n\n\
Exit codes: 0 done; 1 some files could not be put into the directory (each is reported); 2 wrong usage; 8 the image cannot be read, or nothing was exported.")]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// What to make: a directory (missing or empty), or a file; - is standard output
    dest: PathBuf,
    /// What to export: a directory with everything in it, or (only as tar or oci) a file
    #[arg(long, value_name = "PATH", default_value = "/", hide_default_value = true)]
    path: OsString,
    /// dir (a directory), tar (a tar archive) or oci (a directory with an OCI image layout of one
    /// layer; on standard output, a tar archive of this directory) [default: tar for - and for
    /// names ending in .tar, .tar.gz, .tgz, .tar.zst, .tar.zstd or .tzst, else dir; names of other
    /// archives, such as x.tar.xz, are refused]
    #[arg(long = "as", value_name = "KIND")]
    kind: Option<Kind>,
    /// Compress the archive or the layer with gz, zst or none [default for an archive: as its name
    /// says, else none; for a layer: gz]
    #[arg(long, value_name = "HOW")]
    compress: Option<Compression>,
    /// Platform of the container image: OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT [default: linux
    /// and this machine's]
    #[arg(long)]
    platform: Option<Platform>,
    /// Name or tag of the container image
    #[arg(long, value_name = "NAME")]
    reference: Option<String>,
    /// Overwrite an existing archive
    #[arg(short = 'F', long)]
    force: bool,
    /// Folder for a container image that goes to standard output [default: TMPDIR, else /tmp]
    #[arg(long, value_name = "FOLDER")]
    tmpdir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Dir,
    Tar,
    Oci,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Dir => "dir",
            Self::Tar => "tar",
            Self::Oci => "oci",
        }
    }
}

/// File name endings of archives, with their compression.
const ENDINGS: [(&str, Compression); 6] = [
    (".tar", Compression::None),
    (".tar.gz", Compression::Gzip),
    (".tgz", Compression::Gzip),
    (".tar.zst", Compression::Zstd),
    (".tar.zstd", Compression::Zstd),
    (".tzst", Compression::Zstd),
];

/// File name endings of archives that cannot be written. The same holds for every ending after
/// `.tar` that is not in [`ENDINGS`].
const FOREIGN_ENDINGS: [&str; 8] = [".txz", ".tbz", ".tbz2", ".tlz", ".zip", ".7z", ".rar", ".cpio"];

impl Args {
    /// Makes the directory, archive or container image.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let ending = self.ending();
        if matches!(self.kind, None | Some(Kind::Tar)) && self.compress.is_none() {
            self.refuse_foreign_archive()?;
        }
        let is_archive = self.is_printed() || ending.is_some();
        let kind = self.kind.unwrap_or(if is_archive { Kind::Tar } else { Kind::Dir });
        if kind == Kind::Dir {
            return self.into_directory(output);
        }
        let reader = image::open(&self.image)?;
        let began = Instant::now();
        let tree =
            Tree::read_image(Arc::clone(reader.device()), self.image.file(), image::path_bytes(&self.path))?;
        interrupt::watch()?;
        let progress = Progress::copying(output, "export");
        progress.expect(u64_from_usize(tree.names()), tree.data_bytes());
        let done = match kind {
            Kind::Tar => self.to_archive(&tree, self.compress.or(ending).unwrap_or_default(), &progress),
            Kind::Oci => self.to_container(&tree, &progress),
            Kind::Dir => unreachable!("made above"),
        };
        interrupt::check()?;
        let exported = done?;
        drop(progress);
        self.tell(kind, exported, began, output);
        Ok(ExitCode::SUCCESS)
    }

    fn is_printed(&self) -> bool {
        self.dest.as_os_str() == "-"
    }

    /// The compression that the name asks for; `None` if it has none of the [`ENDINGS`].
    fn ending(&self) -> Option<Compression> {
        let name = self.dest.as_os_str().to_str()?;
        ENDINGS.iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, how)| *how)
    }

    /// Refuses a name that asks for an archive of a kind that cannot be written.
    fn refuse_foreign_archive(&self) -> Result<()> {
        let name =
            self.dest.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let (stem, last) = name.rsplit_once('.').unwrap_or((name.as_str(), ""));
        let is_tar = stem.ends_with(".tar") && !last.is_empty();
        let is_foreign = is_tar || FOREIGN_ENDINGS.iter().any(|ending| name.ends_with(ending));
        if self.ending().is_some() || !is_foreign || self.dest.is_dir() {
            return Ok(());
        }
        let known = ENDINGS.map(|(ending, _)| ending).join(", ");
        Err(UsageError::new(format!(
            "{}: such an archive cannot be written; names ending in {known} can; \
             for a directory of this name give --as dir",
            self.dest.display()
        ))
        .into())
    }

    /// Copies the content of the requested directory into the destination directory.
    fn into_directory(self, output: &Output) -> Result<ExitCode> {
        if self.is_printed() {
            return Err(UsageError::new("-: standard output is no directory; --as tar".to_owned()).into());
        }
        if self.compress.is_some() || self.platform.is_some() || self.reference.is_some() {
            let what =
                "--compress, --platform, --reference: a directory has none; --as tar or oci".to_owned();
            return Err(UsageError::new(what).into());
        }
        host::refuse_occupied(&self.dest)?;
        let reader = image::open(&self.image)?;
        get::Args::exported(self.image, self.path, self.dest.into()).run_on(&reader, output)
    }

    fn to_archive(&self, tree: &Tree, how: Compression, progress: &Progress) -> Result<Exported> {
        if self.is_printed() {
            return archive(tree, how, progress, Path::new("standard output"), &mut std::io::stdout().lock());
        }
        image::refuse_same(&self.image, &self.dest)?;
        if !self.force && self.dest.exists() {
            bail!("{}: is there already; overwrite it with --force (-F)", self.dest.display());
        }
        let made = partial::Destination::open(&self.dest)?;
        let done = archive(tree, how, progress, &self.dest, &mut made.as_file())?;
        made.complete()?;
        Ok(done)
    }

    fn to_container(&self, tree: &Tree, progress: &Progress) -> Result<Exported> {
        let compression = self.compress.unwrap_or(Compression::Gzip);
        let options = ContainerOptions {
            compression,
            platform: self.platform.clone(),
            reference: self.reference.clone(),
        };
        let watch = &mut |bytes| {
            // Not an error of kind Interrupted, which writers retry.
            interrupt::check().map_err(std::io::Error::other)?;
            progress.add_bytes(bytes);
            Ok(())
        };
        if !self.is_printed() {
            host::refuse_entries(&self.dest)?;
            let made = partial::folder_beside(&self.dest)?;
            let done = tree.write_container_watched(made.path(), &options, watch)?;
            interrupt::check()?;
            partial::complete_folder(made, &self.dest)?;
            return Ok(done);
        }
        let folder = self.tmpdir.clone().unwrap_or_else(std::env::temp_dir);
        let made = tempfile::tempdir_in(&folder).with_context(|| folder.display().to_string())?;
        let done = tree.write_container_watched(made.path(), &options, watch)?;
        interrupt::check()?;
        // Makes the archive independent of this machine.
        std::fs::set_permissions(made.path(), PermissionsExt::from_mode(0o755))?;
        let mut layout = Tree::read(made.path(), 1)?;
        layout.apply(&Rules {
            squash: Some((0, 0)),
            modified: Some(Timestamp::from_seconds(0)),
            ..Rules::default()
        });
        archive(
            &layout,
            Compression::None,
            progress,
            Path::new("standard output"),
            &mut std::io::stdout().lock(),
        )?;
        Ok(done)
    }

    fn tell(&self, kind: Kind, exported: Exported, began: Instant, output: &Output) {
        // With `-`, this is a filter: it prints a summary only if `--json` asks for one.
        let told = match (output.json, output.quiet || self.is_printed()) {
            (true, _) => {
                let object = json!({
                    "image": self.image.display().to_string(),
                    "as": kind.name(),
                    "names": exported.names,
                    "bytes": exported.bytes,
                    "seconds": began.elapsed().as_secs_f64(),
                });
                let object = names::with(object, "path", image::path_bytes(&self.path));
                names::with(object, "to", image::path_bytes(self.dest.as_os_str())).to_string()
            }
            (false, true) => return,
            (false, false) => copied(exported.names, exported.bytes, began),
        };
        // When the archive goes to standard output, the summary goes to standard error.
        if self.is_printed() {
            eprintln!("{told}");
        } else {
            println!("{told}");
        }
    }
}

/// Writes an archive; a signal stops that with an error.
fn archive(
    tree: &Tree,
    how: Compression,
    progress: &Progress,
    name: &Path,
    into: &mut dyn Write,
) -> Result<Exported> {
    let failed = || name.display().to_string();
    let encoder = how.encoder(BufWriter::with_capacity(1 << 20, into)).with_context(failed)?;
    let mut counted = Counted { into: encoder, progress };
    let exported = tree.write_archive(&mut counted, name)?;
    counted.into.finish().and_then(|mut into| into.flush()).with_context(failed)?;
    Ok(exported)
}

/// Counts what is written, and fails after a signal.
struct Counted<'p, W> {
    into: W,
    progress: &'p Progress,
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // Not an error of kind Interrupted, which writers retry.
        interrupt::check().map_err(std::io::Error::other)?;
        let n = self.into.write(bytes)?;
        self.progress.add_bytes(n);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.into.flush()
    }
}
