//! `blockyard frag IMAGE [PATH...]`: how fragmented free space and files are, with the figures that
//! e2freefrag, e4defrag -c and filefrag print.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use blockyard_device::ImagePath;
use blockyard_disk::Inode;
use blockyard_inspect::frag::defrag::DefragTotals;
use blockyard_inspect::frag::file::{Record, contiguous_runs, filefrag_count, filefrag_line};
use blockyard_inspect::frag::table::{self, FileTable};
use blockyard_inspect::path::{LastLink, trimmed};
use blockyard_inspect::reader::Reader;
use blockyard_inspect::scan::{ImageScan, Looked, ScanOptions, each_file, has_content, totals};
use serde_json::{Value, json};

use super::progress::Progress;
use super::{Output, image, names};

/// Meaning and JSON keys, for the help.
const KEYS: &str = "Prints free space as e2freefrag does for an image that is not mounted, then the extents of all files \
as e4defrag -c does for the root of a mount; with PATHs, it prints files as filefrag does and directories as e4defrag \
-c does. (All are the tools of e2fsprogs 1.47. Counts are those that e4defrag shows just \
after a mount. Later it may count fewer extents, because Linux joins adjacent ones in memory.)\n\nJSON: an object free (total_blocks, free_blocks, \
block_size, extents, min_kb, max_kb, avg_kb, histogram: objects with from_blocks, extents, blocks), an object files \
(files, extents, best, kb_per_extent, score, worst: objects with path, extents, best, kb_per_extent), and an object \
per file with --files or -v, and for each file among PATHs (path, inode, size, filefrag, records, runs). A directory among PATHs gives an object with \
path and the keys of files. If a path is not UTF-8, path_bytes has its bytes in hexadecimal.";

/// Arguments of `blockyard frag`.
#[derive(clap::Args)]
#[command(after_help = image::EXIT_CODES, after_long_help = format!("{KEYS}\n\n{}", image::EXIT_CODES))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// Files and directories (default: free space, and all files)
    paths: Vec<OsString>,
    /// Also count free aligned chunks of this many KiB, a power of two
    #[arg(short = 'c', long, value_name = "KIB")]
    chunk: Option<u64>,
    /// Also print each file, as filefrag does
    #[arg(long)]
    files: bool,
    /// Print the records of each file, as filefrag -v does
    #[arg(short = 'v', long)]
    verbose: bool,
    /// For images with clusters: count free space as e2freefrag 1.47 does, which reads only part of
    /// the bitmap
    #[arg(long)]
    as_e2freefrag: bool,
}

impl Args {
    /// Scans and prints.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let reader = image::open(&self.image)?;
        image::print(&self.image, output.mutes_text(), |out| {
            let mut report = Report {
                reader: &reader,
                args: &self,
                output,
                json: output.json,
                tables: 0,
                looked: Looked::default(),
                out,
            };
            if self.paths.is_empty() {
                return report.image();
            }
            self.paths.iter().try_for_each(|path| report.path(path))
        })
    }
}

/// One run of the command.
struct Report<'a> {
    reader: &'a Reader,
    args: &'a Args,
    output: &'a Output,
    json: bool,
    /// Number of file tables printed so far. Only the first one has a heading.
    tables: usize,
    looked: Looked,
    out: &'a mut dyn Write,
}

impl Report<'_> {
    /// Prints free space and all files.
    fn image(&mut self) -> Result<()> {
        let options = ScanOptions {
            chunk_bytes: self.args.chunk.map(|kib| kib.saturating_mul(1024)),
            as_e2freefrag: self.args.as_e2freefrag,
        };
        let reader = self.reader;
        let scan = if self.args.files || self.args.verbose {
            ImageScan::watched(reader, options, &mut |path, inode, records| self.file(path, inode, records))?
        } else {
            let progress = Progress::counting(self.output, "frag", "files");
            // An estimate: this counts all inodes in use, but only names of regular files with
            // content are visited.
            let inodes = reader.superblock().raw();
            let used = inodes.s_inodes_count.get().saturating_sub(inodes.s_free_inodes_count.get());
            progress.expect(used.into(), 0);
            ImageScan::watched(reader, options, &mut |_, _, _| {
                progress.add_name();
                anyhow::Ok(())
            })?
        };
        let superblock = reader.superblock();
        let total = superblock.geometry().blocks_count().raw();
        let free = superblock.raw().free_blocks_count().raw();
        if self.json {
            writeln!(self.out, "{}", free_json(&scan, total, free))?;
            writeln!(self.out, "{}", totals_json(&scan.defrag, None))?;
            return Ok(());
        }
        let shown = self.args.image.display().to_string();
        let name = shown.as_bytes();
        write!(self.out, "{}", scan.free.report(&names::text(name), total, free))?;
        writeln!(self.out)?;
        Ok(write!(self.out, "{}", scan.defrag.report("device", name, &names::text))?)
    }

    /// Prints one file or directory.
    fn path(&mut self, path: &OsString) -> Result<()> {
        let path = image::path_bytes(path);
        let inode = self.reader.resolve(path, LastLink::Follow)?;
        if !inode.is_directory() {
            if !has_content(&inode) && inode.file_type() != blockyard_disk::FileType::Regular {
                bail!("{}: neither a regular file nor a directory", String::from_utf8_lossy(path));
            }
            let records = self.looked.records(self.reader, &inode)?;
            return self.file(path, &inode, &records);
        }
        let mut all: DefragTotals = totals(self.reader);
        let reader = self.reader;
        let each = self.args.files || self.args.verbose;
        each_file(reader, trimmed(path), inode, &mut |path, inode, records| {
            all.add(path, records);
            if each { self.file(path, inode, records) } else { Ok(()) }
        })?;
        if self.json {
            return Ok(writeln!(self.out, "{}", totals_json(&all, Some(path)))?);
        }
        Ok(write!(self.out, "{}", all.report("directory", path, &names::text))?)
    }

    fn file(&mut self, path: &[u8], inode: &Inode, records: &[Record]) -> Result<()> {
        if self.json {
            let object = json!({"inode": inode.number().raw(), "size": inode.size(),
                "filefrag": filefrag_count(records), "records": records.len(), "runs": contiguous_runs(records)});
            return Ok(writeln!(self.out, "{}", names::with(object, "path", path))?);
        }
        let shown = names::text(path);
        if self.args.verbose {
            let file = FileTable::new(self.reader, &shown, inode, records)?;
            if self.tables == 0 {
                write!(self.out, "{}", table::heading(self.reader, inode))?;
            }
            self.tables += 1;
            write!(self.out, "{file}")?;
        }
        Ok(write!(self.out, "{}", filefrag_line(&shown, records))?)
    }
}

fn free_json(scan: &ImageScan, total: u64, free: u64) -> Value {
    let histogram: Vec<Value> = scan
        .free
        .rows()
        .map(|(bucket, row)| {
            json!({"from_blocks": 1u64 << (bucket - 1), "extents": row.extents, "blocks": row.blocks})
        })
        .collect();
    json!({"free": {"total_blocks": total, "free_blocks": free, "block_size": scan.block_size,
        "extents": scan.free.extents(), "min_kb": scan.free.min_kib(), "max_kb": scan.free.max_kib(),
        "avg_kb": scan.free.average_kib(), "histogram": histogram}})
}

fn totals_json(totals: &DefragTotals, path: Option<&[u8]>) -> Value {
    let (now, best) = totals.now_and_best();
    let worst: Vec<Value> = totals
        .worst()
        .iter()
        .map(|file| {
            let figures =
                json!({"extents": file.now, "best": file.best, "kb_per_extent": file.kib_per_extent});
            names::with(figures, "path", &file.name)
        })
        .collect();
    let figures = json!({"files": totals.files(), "extents": now, "best": best,
        "kb_per_extent": totals.kib_per_extent(), "score": totals.score(), "worst": worst});
    match path {
        None => json!({ "files": figures }),
        Some(path) => names::with(figures, "path", path),
    }
}
