//! `blockyard policy`: the presets and their parts.

use std::process::ExitCode;

use anyhow::{Context, Result};
use blockyard_alloc::policy::{PRESETS, Preset, SlotHelp};
use blockyard_alloc::{Policy, Tunable};
use serde_json::{Map, Value, json};

use super::{Output, UsageError};
use crate::terminal;

/// A preset names one filling for each slot of a policy. preset:slot=filling overrides a slot, and
/// preset:mb_max_to_scan=50 changes a tunable from its default.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the presets
    #[command(after_help = "JSON: one object per preset: name, about.")]
    List,
    /// Show a preset's documentation, slots and tunables, with overrides applied
    #[command(
        after_help = "JSON: one object: policy, documentation, slots (filling by name), tunables (value by name, null for \
                      the default), about (the meaning of each slot and tunable, by name), fillings (the meaning of each, by slot \
                      and name)."
    )]
    Show {
        /// A preset, or a preset with overrides
        name: String,
    },
}

impl Args {
    /// Prints the list, or one preset.
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
        println!("{}", json!({"name": preset.policy.preset, "about": about}));
    } else {
        println!("{:<20} {about}", preset.policy.preset);
    }
}

fn show(text: &str, output: &Output) -> Result<()> {
    let policy = Policy::parse(text).map_err(|error| UsageError::new(error.to_string()))?;
    let preset = Preset::by_name(policy.preset).context("a parsed policy has a preset")?;
    if output.json {
        println!("{}", to_json(text, &policy, preset));
    } else if !output.quiet {
        to_lines(&policy, preset, terminal::columns()).iter().for_each(|line| println!("{line}"));
    }
    Ok(())
}

fn to_json(text: &str, policy: &Policy, preset: &Preset) -> Value {
    let explained: Vec<SlotHelp> = policy.explained().collect();
    let each = |of: &dyn Fn(&SlotHelp) -> Value| -> Map<String, Value> {
        explained.iter().map(|slot| (slot.name.to_owned(), of(slot))).collect()
    };
    let mut about = each(&|slot| slot.about.clone().into());
    about.extend(Tunable::ALL.iter().map(|one| (one.name().to_owned(), tunable_about(*one).into())));
    let fillings = each(&|slot| {
        Value::Object(
            slot.fillings.iter().map(|(name, about)| ((*name).to_owned(), about.clone().into())).collect(),
        )
    });
    let tunables: Map<String, Value> =
        Tunable::ALL.iter().map(|one| (one.name().to_owned(), policy.tunables.value(*one).into())).collect();
    json!({"policy": text, "documentation": preset.paragraphs().join("\n"),
        "slots": each(&|slot| slot.value.clone().into()), "tunables": tunables, "about": about, "fillings": fillings})
}

/// The output without `--json`: documentation, slots with their possible fillings, tunables. A line
/// is longer than `columns` only if its first word does not fit.
fn to_lines(policy: &Policy, preset: &Preset, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in preset.paragraphs() {
        let indent = if paragraph.starts_with("- ") { "  " } else { "" };
        add(&mut lines, "", indent, &paragraph, columns);
        if indent.is_empty() && !paragraph.is_empty() {
            lines.push(String::new());
        }
    }
    lines.retain({
        let mut was_empty = false;
        move |line| !(std::mem::replace(&mut was_empty, line.is_empty()) && line.is_empty())
    });
    add(&mut lines, "", "", "Slots, as NAME=FILLING in overrides; * is what fills them here:", columns);
    for slot in policy.explained() {
        let value = if slot.fillings.is_empty() { format!("={}", slot.value) } else { String::new() };
        add(&mut lines, &format!("{}{value}: ", slot.name), "    ", &lower_first(&slot.about), columns);
        let widest = slot.fillings.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, about) in &slot.fillings {
            let mark = if *name == slot.value { '*' } else { ' ' };
            let head = format!("  {mark} {name:<widest$}  ");
            add(&mut lines, &head, &" ".repeat(head.len()), about, columns);
        }
    }
    lines.push(String::new());
    add(&mut lines, "", "", "Tunables, as NAME=NUMBER in overrides:", columns);
    for &tunable in Tunable::ALL {
        let value = match policy.tunables.value(tunable) {
            Some(value) => format!("{value} (default: {})", tunable.default_words()),
            None => format!("default, {}", tunable.default_words()),
        };
        add(&mut lines, &format!("{}: ", tunable.name()), "    ", &value, columns);
        add(&mut lines, "    ", "    ", &tunable_about(tunable), columns);
    }
    lines
}

fn tunable_about(tunable: Tunable) -> String {
    tunable.about().replace('`', "").trim().to_owned()
}

/// Adds a text after a heading, wrapped at blanks; continuation lines are indented.
fn add(lines: &mut Vec<String>, head: &str, indent: &str, text: &str, columns: usize) {
    let mut line = head.to_owned();
    let mut is_begun = false;
    for word in text.split_whitespace() {
        if is_begun && line.chars().count() + 1 + word.chars().count() > columns {
            lines.push(std::mem::replace(&mut line, indent.to_owned()));
            is_begun = false;
        }
        if is_begun {
            line.push(' ');
        }
        line.push_str(word);
        is_begun = true;
    }
    lines.push(line.trim_end().to_owned());
}

/// Makes the first letter of a text lower-case, because the text follows a heading. A text whose
/// second character is no lower-case letter, such as an acronym, stays as it is.
fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    match (letters.next(), text.chars().nth(1)) {
        (Some(first), Some(second)) if second.is_lowercase() => first.to_lowercase().chain(letters).collect(),
        _ => text.to_owned(),
    }
}
