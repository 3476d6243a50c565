//! Which options of `lab agree` each of its five ways takes: at level 1 new recordings or
//! `--replay`, at level 2 `--trace`, `--make` or the table.

use anyhow::Result;

use super::operations::{MIB, SPACE_MIB};
use super::{Args, OPS, SEED};
use crate::commands::lab::run::refuse_ignored;

impl Args {
    /// Refuses every option that the comparison would ignore.
    pub(super) fn ensure_all_belong(&self) -> Result<()> {
        let asked = &self.operations;
        let is_pair = asked.are_given();
        let is_made = asked.make.is_some();
        let is_table = !is_pair && self.level == 2;
        let is_level_1 = !is_pair && !is_table;
        let is_replay = is_level_1 && !self.replay.is_empty();
        let is_recorded = is_level_1 && !is_replay;
        let options = [
            ("--seed", self.seed != SEED, !is_replay),
            ("--ops", self.ops != OPS, is_recorded || is_table || is_made),
            ("--every", self.every > 1, is_recorded || is_table),
            ("--replay", !self.replay.is_empty(), is_replay),
            ("--summary", self.summary, is_level_1 || is_table),
            ("--start", asked.start.is_some(), is_pair),
            ("--mkfs", !asked.mkfs.is_empty(), is_pair),
            ("--mib", asked.mib != MIB, is_pair),
            ("--space", asked.space != SPACE_MIB, is_made),
            ("--mount", !asked.mount.is_empty(), is_pair),
            ("--age", asked.age.is_some(), is_pair),
            ("--workers", asked.workers > 1, is_made || is_table),
            ("--seeds", !asked.seeds.is_empty(), is_table),
            ("--report", asked.report, is_table),
            ("--lazy", asked.lazy, is_pair),
            ("--ceiling", asked.ceiling, is_pair || is_table),
            ("--scratch", asked.scratch.is_some(), is_pair || is_table),
        ];
        let ignored = options.iter().filter(|(_, is_given, belongs)| *is_given && !belongs);
        let ignored: Vec<&str> = ignored.map(|(option, ..)| *option).collect();
        let way = if is_made {
            "--make"
        } else if is_pair {
            "--trace"
        } else if is_table {
            "the table of --level 2"
        } else if is_replay {
            "--replay"
        } else {
            "--level 1"
        };
        refuse_ignored(way, &ignored)
    }
}
