//! `blockyard policy`: the presets and what they are made of.

use std::process::ExitCode;

use anyhow::{Context, Result};
use blockyard_alloc::Policy;
use blockyard_alloc::policy::{PRESETS, Preset};

use super::Output;

/// Presets are names for compositions of slots; an override is `preset:slot=value`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the presets
    #[command(after_help = "JSON: one object a preset: name, about.")]
    List,
    /// Show a preset's documentation and slots, with overrides applied
    #[command(after_help = "JSON: one object: policy, documentation, slots (filling by name).")]
    Show {
        /// A preset, or a preset with overrides
        name: String,
    },
}

impl Args {
    /// Prints.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        match self.command {
            Command::List if output.mutes_text() => {}
            Command::List => PRESETS.iter().for_each(|preset| list(preset, output)),
            Command::Show { name } => show(&name, output)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn list(preset: &Preset, output: &Output) {
    let title = preset.documentation().next().unwrap_or_default().trim_start_matches("# ");
    let about = title.split_once(": ").map_or(title, |(_, about)| about);
    if output.json {
        println!("{}", serde_json::json!({"name": preset.policy.preset, "about": about}));
    } else {
        println!("{:<20} {about}", preset.policy.preset);
    }
}

fn show(text: &str, output: &Output) -> Result<()> {
    let policy = Policy::parse(text)?;
    let preset = Preset::by_name(policy.preset).context("a parsed policy has a preset")?;
    if output.json {
        let slots: serde_json::Map<_, _> =
            policy.slots().map(|(name, value)| (name.to_owned(), value.into())).collect();
        let documentation = preset.documentation().collect::<Vec<_>>().join("\n");
        println!("{}", serde_json::json!({"policy": text, "documentation": documentation, "slots": slots}));
        return Ok(());
    }
    if output.quiet {
        return Ok(());
    }
    preset.documentation().for_each(|line| println!("{line}"));
    println!("\nslots (and what may fill them):");
    let known: std::collections::BTreeMap<_, _> = Policy::known_fillings().collect();
    for (name, value) in policy.slots() {
        println!("  {name:<16} {value:<12} {}", known.get(name).map_or("", String::as_str));
    }
    Ok(())
}
