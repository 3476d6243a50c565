//! The texts of `/proc/fs/ext4/<device>/{mb_groups,mb_structs_summary,mb_stats}`, with the kernel's
//! fields in the kernel's order. `buddies_time_used` is always 0.

use core::fmt::Write;

use super::{CRITERIA, GroupLine, MbStats, StructsSummary};

/// Columns of `mb_groups`, whatever the block size.
const GROUP_COLUMNS: usize = 14;

/// The text of `mb_groups`.
pub(crate) fn mb_groups(lines: &[GroupLine]) -> String {
    let mut text = String::from("#group: free  frags first [ 2^0   2^1   2^2   2^3   2^4   2^5   2^6   ");
    text.push_str("2^7   2^8   2^9   2^10  2^11  2^12  2^13  ]\n");
    for line in lines {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "#{:<5}: {:<5} {:<5} {:<5} [",
            line.group, line.free, line.fragments, line.first_free
        );
        for order in 0..GROUP_COLUMNS {
            let _ = write!(text, " {:<5}", line.chunks.get(order).copied().unwrap_or(0));
        }
        text.push_str(" ]");
        if line.corrupt {
            text.push_str(" Block bitmap corrupted!");
        }
        text.push('\n');
    }
    text
}

/// The text of `mb_structs_summary`.
pub(crate) fn mb_structs_summary(summary: &StructsSummary) -> String {
    let mut text = format!("optimize_scan: {}\n", u32::from(summary.optimize_scan));
    for (title, counts) in [
        ("max_free_order_lists", &summary.max_free_order),
        ("avg_fragment_size_lists", &summary.avg_fragment_size),
    ] {
        let _ = writeln!(text, "{title}:");
        for (order, count) in counts.iter().enumerate() {
            let _ = writeln!(text, "\tlist_order_{order}_groups: {count}");
        }
    }
    text
}

/// Inputs of the text of `mb_stats` besides the counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatsForm {
    /// Whether the tunable `mb_stats` is on.
    pub(crate) on: bool,
    /// Groups of the file system.
    pub(crate) groups: u32,
    /// Whether there are `bad_suggestions` lines, as before the scalability series.
    pub(crate) bad_suggestions: bool,
    /// Whether there is a line for stream goal hits.
    pub(crate) stream_goal_hits: bool,
}

/// The title of each criterion's block, and whether it had a `bad_suggestions` line.
const BLOCKS: [(&str, bool); CRITERIA] = [
    ("cr_p2_aligned_stats", true),
    ("cr_goal_fast_stats", true),
    ("cr_best_avail_stats", true),
    ("cr_goal_slow_stats", false),
    ("cr_any_free_stats", false),
];

/// The text of `mb_stats`.
pub(crate) fn mb_stats(stats: &MbStats, form: StatsForm) -> String {
    let mut text = String::from("mballoc:\n");
    if !form.on {
        text.push_str("\tmb stats collection turned off.\n");
        text.push_str("\tTo enable, please write \"1\" to sysfs file mb_stats.\n");
        return text;
    }
    let mut line = |indent: &str, name: &str, value: u64| {
        let _ = writeln!(text, "{indent}{name}: {value}");
    };
    line("\t", "reqs", stats.requests[0]);
    line("\t", "success", stats.success[0]);
    line("\t", "groups_scanned", stats.groups_scanned[0]);
    for (criterion, (title, suggestions)) in BLOCKS.into_iter().enumerate() {
        let _ = writeln!(text, "\t{title}:");
        let mut line = |name: &str, value: u64| {
            let _ = writeln!(text, "\t\t{name}: {value}");
        };
        line("hits", stats.hits[criterion]);
        line("groups_considered", stats.groups_considered[criterion]);
        line("extents_scanned", stats.extents_scanned[criterion]);
        line("useless_loops", stats.useless_loops[criterion]);
        if suggestions && form.bad_suggestions {
            line("bad_suggestions", stats.bad_suggestions[criterion]);
        }
    }
    let mut line = |name: &str, value: u64| {
        let _ = writeln!(text, "\t{name}: {value}");
    };
    line("extents_scanned", stats.extents_scanned_total[0]);
    line("\tgoal_hits", stats.goal_hits[0]);
    if form.stream_goal_hits {
        line("\tstream_goal_hits", stats.stream_goal_hits[0]);
    }
    line("\tlen_goal_hits", stats.len_goal_hits[0]);
    line("\t2^n_hits", stats.power2_hits[0]);
    line("\tbreaks", stats.breaks[0]);
    line("\tlost", stats.lost[0]);
    let _ = writeln!(text, "\tbuddies_generated: {}/{}", stats.buddies_generated[0], form.groups);
    let _ = writeln!(text, "\tbuddies_time_used: 0");
    let _ = writeln!(text, "\tpreallocated: {}", stats.preallocated[0]);
    let _ = writeln!(text, "\tdiscarded: {}", stats.discarded[0]);
    text
}
