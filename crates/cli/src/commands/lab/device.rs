//! `blockyard lab device`: lists the modelled devices, and plays recorded requests on them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use blockyard_device::modelled::{Figures, MODELS, Request, RequestTrace, replay};
use blockyard_lab::device_model::{DeviceModel, SHORT};

use crate::commands::Output;

/// The largest device without `--size`, in bytes.
const SIZE_MAX: u64 = 1 << 44;

/// Models of devices for lab run --device: disks, SSDs, a network disk, memory. Their times are
/// modelled, so nothing actually waits.
#[derive(clap::Args)]
#[command(after_help = "\
A trace has one line per request: its kind (read, write, write-durable, discard, flush), its first byte, and its
number of bytes.
Keys of --json for replay: device, requests, depth, seconds, requests_per_s, read_bytes, written_bytes, lat_us_mean,
lat_us_max, positionings and buffer_hits (hdd), write_amplification and wear_spread (ftl).")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Print the names of the models
    List,
    /// Print a model's file: every parameter with its unit and source
    Show {
        /// A name from the list, or a file
        #[arg(value_name = "NAME", value_parser = text)]
        text: String,
    },
    /// Play the requests of a trace on a model, with a number of requests in flight
    Replay {
        /// The file that lab run --keep-requests wrote
        trace: PathBuf,
        /// The model (repeatable)
        #[arg(long, value_name = "MODEL", required = true)]
        on: Vec<DeviceModel>,
        /// Requests in flight; a flush waits for all earlier ones
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
        depth: u32,
        /// Size of the device in bytes, or with a suffix K, M, G or T; a request that ends above it
        /// is refused [default: the highest end of a request, at least 1 MiB]
        #[arg(long)]
        size: Option<String>,
    },
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        match self.command {
            Command::List => list(output),
            Command::Show { text } => print!("{text}"),
            Command::Replay { trace, on, depth, size } => {
                let size = size.as_deref().map(super::run::size).transpose().context("--size")?;
                let requests = read(&trace)?;
                let end = requests.requests().iter().map(Request::end).max().unwrap_or(0);
                check_ends(requests.requests(), size, &trace)?;
                for model in &on {
                    let played = model.parameters.model(size.unwrap_or(end).max(1 << 20))?;
                    let figures = replay(played, requests.requests(), usize::try_from(depth)?);
                    print(model, depth, &figures, output);
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The text of a model's file. An unknown name is wrong usage.
fn text(name: &str) -> Result<String, String> {
    DeviceModel::text(name).map_err(|error| format!("{error:#}"))
}

fn list(output: &Output) {
    for (name, _) in MODELS {
        let short = SHORT.iter().find(|(_, long)| *long == name).map(|(short, _)| *short);
        if output.json {
            println!("{}", serde_json::json!({ "name": name, "short": short }));
        } else {
            println!("{name:<22}{}", short.unwrap_or("-"));
        }
    }
}

fn read(path: &Path) -> Result<RequestTrace> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.parse().with_context(|| path.display().to_string())
}

/// Refuses requests that end beyond the device, or without `--size` beyond [`SIZE_MAX`].
fn check_ends(requests: &[Request], size: Option<u64>, trace: &Path) -> Result<()> {
    let most = size.unwrap_or(SIZE_MAX);
    let beyond = requests.iter().position(|request| request.end() > most);
    let what = if size.is_some() { "--size" } else { "largest device" };
    ensure!(
        beyond.is_none(),
        "{} line {}: ends above the {what}, {most} bytes",
        trace.display(),
        beyond.map_or(0, |index| index + 1)
    );
    Ok(())
}

fn print(model: &DeviceModel, depth: u32, figures: &Figures, output: &Output) {
    let seconds = figures.elapsed.as_secs_f64();
    let latency = figures.latency_total.as_secs_f64() * 1e6;
    let mean = latency / f64::from(u32::try_from(figures.requests.max(1)).unwrap_or(u32::MAX));
    let (counts, factor) = (&figures.counts, figures.counts.write_amplification());
    if output.json {
        let line = serde_json::json!({
            "device": model.name, "requests": figures.requests, "depth": depth, "seconds": seconds,
            "requests_per_s": figures.requests_per_second(), "read_bytes": figures.read_bytes,
            "written_bytes": figures.written_bytes, "lat_us_mean": mean,
            "lat_us_max": figures.latency_max.as_secs_f64() * 1e6, "positionings": counts.positionings,
            "buffer_hits": counts.buffer_hits, "write_amplification": factor, "wear_spread": counts.wear_spread(),
        });
        println!("{line}");
    } else if !output.quiet {
        // The rate is infinite if the requests took no time.
        let rate = figures.requests_per_second();
        let rate = if rate.is_finite() { format!("{rate:.0}") } else { "-".to_owned() };
        println!(
            "{model}: {} requests in {seconds:.6} s ({rate} a second), depth {depth}; {} MiB read, {} MiB written; latency mean {mean:.1} us, \
             longest {:.1} us",
            figures.requests,
            figures.read_bytes >> 20,
            figures.written_bytes >> 20,
            figures.latency_max.as_secs_f64() * 1e6
        );
        if let (Some(factor), Some((least, most))) = (factor, counts.wear_spread()) {
            println!("{model}: write amplification {factor:.3}, erasures of a block {least} to {most}");
        }
    }
}
