//! `blockyard recover`: replays the journal of an image, or says what a replay would do.

use std::process::ExitCode;

use anyhow::Context;
use blockyard_device::{BlockDevice, ImagePath, OverlayDevice};
use blockyard_inspect::units::counted;
use blockyard_recovery::{
    Error, JournalState, JournalStatus, OnDamage, Options, Report, Session, Unflagged, replay_to_device,
};
use serde_json::json;

use super::other_hosts::Unshared;
use super::{Output, image};

/// Exit code if the log is damaged or doubtful and nothing was written.
const EXIT_DAMAGED: u8 = 4;

/// Arguments of `blockyard recover`.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 done or nothing to do, 2 wrong usage, 4 the log is damaged or doubtful (nothing is \
                  written without --force), 8 the image cannot be read or written.",
    after_long_help = "JSON: one object: state (none, clean, flag-only, needs-replay, unflagged), source, features, \
                       blocks, sequence, start, errno (the journal before); transactions, logged, revokes, revoked, \
                       written, end (null when no log was read), damage (list of texts), dry_run.\n\nExit codes: 0 done \
                       or nothing to do, 2 wrong usage, 4 the log is damaged or doubtful (nothing is written without \
                       --force), 8 the image cannot be read or written."
)]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// The device or file that holds the journal, when it is not in the image
    #[arg(short, long, value_name = "DEVICE", value_parser = image::operand())]
    journal_device: Option<ImagePath>,
    /// Only say what a replay would do
    #[arg(short = 'n', long)]
    no: bool,
    /// Replay the valid part of a damaged log (the file system is then marked as having errors).
    /// Also replay a log if the superblock does not ask for recovery
    #[arg(long)]
    force: bool,
}

impl Args {
    /// Replays, and prints what was found and done.
    pub(crate) fn run(self, output: &Output) -> anyhow::Result<ExitCode> {
        let options = if self.force {
            Options { on_damage: OnDamage::ReplayGood, unflagged: Unflagged::Replay }
        } else {
            Options::default()
        };
        match self.replay(&options, output)? {
            Ok(report) => {
                self.print(&report, output);
                Ok(ExitCode::SUCCESS)
            }
            Err(error @ (Error::Damaged(_) | Error::Unflagged | Error::LoggedSuperblock(_))) => {
                eprintln!("blockyard: {}: {error}; nothing was written", self.image.display());
                Ok(ExitCode::from(EXIT_DAMAGED))
            }
            Err(error) => Err(error).with_context(|| self.image.display().to_string()),
        }
    }

    /// Replays onto the devices, or with `-n` into memory.
    fn replay(&self, options: &Options, output: &Output) -> anyhow::Result<Result<Report, Error>> {
        let journal = self.journal_device.as_ref();
        Ok(if self.no {
            let open = |path: &ImagePath| path.open_read_only().map(OverlayDevice::new);
            let image = OverlayDevice::new(image::device(&self.image, false)?);
            replay_on(&image, journal.map(open).transpose()?.as_ref(), options)
        } else {
            let image = image::device(&self.image, true)?;
            journal.map(image::refuse_in_use).transpose()?;
            Unshared::new(&self.image, &image, output)?;
            replay_on(&image, journal.map(ImagePath::open).transpose()?.as_ref(), options)
        })
    }

    fn print(&self, report: &Report, output: &Output) {
        if output.json {
            println!("{}", json(report, self.no));
            return;
        }
        for damage in &report.damage {
            eprintln!("blockyard: {}: {damage}", self.image.display());
        }
        if !output.quiet {
            println!("{}", text(report, self.no));
        }
    }
}

fn replay_on<D: BlockDevice>(image: &D, journal: Option<&D>, options: &Options) -> Result<Report, Error> {
    match journal {
        Some(journal) => Session::open_with_journal(image, journal)?.replay(options),
        None => replay_to_device(image, options),
    }
}

fn text(report: &Report, dry_run: bool) -> String {
    let would = if dry_run { "would be " } else { "" };
    match report.before.state {
        JournalState::None => "no journal".to_owned(),
        JournalState::Clean => "clean: nothing to replay".to_owned(),
        JournalState::FlagOnly => format!("the log is empty: the recovery flag {would}cleared"),
        JournalState::NeedsReplay | JournalState::Unflagged => format!(
            "{} {would}replayed: {} written of {} logged, {} revoked by {}",
            counted(report.transactions, "transaction"),
            counted(report.written, "block"),
            report.logged,
            report.revoked,
            counted(report.revokes, "revoke")
        ),
    }
}

fn json(report: &Report, dry_run: bool) -> serde_json::Value {
    let JournalStatus { state, source, features, blocks, sequence, start, errno } = &report.before;
    let damage: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
    json!({
        "state": state.name(),
        "source": source.map(|source| source.name()),
        "features": features,
        "blocks": blocks,
        "sequence": sequence.raw(),
        "start": start,
        "errno": errno,
        "transactions": report.transactions,
        "logged": report.logged,
        "revokes": report.revokes,
        "revoked": report.revoked,
        "written": report.written,
        "end": report.end.map(blockyard_disk::TxnId::raw),
        "damage": damage,
        "dry_run": dry_run,
    })
}
