//! `blockyard lab age`: makes an image and ages it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use blockyard_alloc::Policy;
use blockyard_lab::age::profile::Profile;
use blockyard_lab::age::{Ageing, Circumstances};
use blockyard_lab::aged_image::lived;
use blockyard_lab::new_file;
use blockyard_lab::run::default_mkfs;

use super::run::{EXIT_ERRORS, size};
use crate::commands::Output;
use crate::commands::progress::Progress;
use crate::terminal;

/// If files fill less than this share of the space that they may grow to, a note says that the life
/// (the ageing by one profile) was too short.
const LONG_ENOUGH: f64 = 0.9;

/// Makes an image in memory and ages it: files are made, grow, and are overwritten, replaced and
/// removed, as a profile says. All random choices are drawn from one seed. Content is dropped, so
/// that only metadata takes memory. The same arguments give the same image.
#[derive(clap::Args)]
#[command(after_help = "\
LIFE is PROFILE[:N][:P%]. N is a number of operations (mail:1000000), or how many times the size of the image is
written (mail:2x) [default: 100000 operations]. P is the share of the free space that files fill [default: the
profile's]. PROFILE is mail, build, phone, vm, database, or a file; --show prints it, with its rates and sizes and
their sources.

Keys of --json: workload, life, policy, seed, bytes, operations, by_kind (create, append, overwrite, replace, delete),
no_room, written_bytes, laps, files, utilisation, extents_per_file, mean_extent_kb, free_extents, avg_free_extent_kb,
score, seconds, kept_mib.

Exit codes: 0 the image passed our check, and also e2fsck if it is installed; 2 wrong usage; 4 a judge found errors; 8
failed.")]
pub(crate) struct Args {
    /// How to age the image: PROFILE[:N][:P%], see below
    life: Ageing,
    /// Write the image to this new file, which will be sparse
    image: Option<PathBuf>,
    /// Size of the image, with a suffix K, M, G or T
    #[arg(long, default_value = "100G")]
    size: String,
    /// The allocation policy; overrides follow a colon
    #[arg(long, default_value = "linux-6.18")]
    policy: String,
    /// How the image is made: options of blockyard mkfs in one string
    #[arg(long, allow_hyphen_values = true)]
    mkfs: Option<String>,
    /// Number of CPU slots, which take turns in doing operations
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    cpus: u32,
    /// Treat the device as one with seek times
    #[arg(long)]
    rotational: bool,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the profile and do nothing else
    #[arg(long)]
    show: bool,
    /// Replace an existing file
    #[arg(long, requires = "image")]
    force: bool,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        if self.show {
            println!("{}", serde_json::to_string_pretty::<Profile>(&self.life.profile)?);
            return Ok(ExitCode::SUCCESS);
        }
        let bytes = size(&self.size).with_context(|| format!("--size {}", self.size))?;
        let policy = Policy::parse(&self.policy)
            .with_context(|| format!("--policy {} (see blockyard policy list)", self.policy))?;
        let options = match &self.mkfs {
            None => default_mkfs(self.seed),
            Some(text) => crate::commands::mkfs::options_of_text(text, self.seed)
                .with_context(|| format!("--mkfs {text:?}"))?,
        };
        if let Some(path) = &self.image {
            let is_new = self.force || !path.exists();
            ensure!(is_new, "{}: is there already; --force replaces it", path.display());
            ensure!(!path.is_dir(), "{}: is a folder; give the name of a file", path.display());
            new_file::check_folder("IMAGE", path)?;
        }
        let who = Circumstances {
            rotational: self.rotational,
            cpus: self.cpus,
            ..Circumstances::new(policy, self.seed)
        };
        let progress = Progress::parts(output, "lab age", 1);
        progress.begin(1, &self.life.to_string());
        let lived = lived(bytes, &options, &self.life, &who)?;
        drop(progress);
        if let Some(path) = &self.image {
            lived.save(path)?;
        }
        if output.json {
            println!("{}", serde_json::to_string(&lived.row)?);
        } else if !output.quiet {
            print!("{}", lived.row.table().terminal(terminal::columns()));
            println!("seed {}: {}", self.seed, lived.verdict.text());
        }
        if lived.fullness < LONG_ENOUGH && !output.quiet {
            eprintln!(
                "blockyard: note: files fill {:.0} % of the space that they may grow to: the life was too short. \
                 Give more operations, or laps such as 3x",
                lived.fullness * 100.0
            );
        }
        Ok(if lived.verdict.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_ERRORS) })
    }
}
