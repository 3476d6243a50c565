//! Counts and costs of a check, in e2fsck's format.

use std::fmt::Write as _;

use blockyard_check::{PassCost, Vitals};
use serde_json::json;

use super::super::Output;

/// Prints the vital statistics, as `e2fsck -v` does.
pub(super) fn print_vitals(vitals: &Vitals, output: &Output) {
    if output.json {
        println!("{}", vitals_json(vitals));
    } else {
        print!("\n{}", vitals_text(vitals));
    }
}

fn vitals_text(vitals: &Vitals) -> String {
    let v = vitals;
    let mut text = String::new();
    let mut line = |count: u64, one: &str, many: &str, more: String| {
        let _ = writeln!(text, "{count:12} {}{more}", if count == 1 { one } else { many });
    };
    let of_used = |count: u64| format!(" ({:.1}%)", 100.0 * share(count, v.inodes_used));
    let used = |count: u64, all: u64| format!(" ({:.2}%, out of {all})", 100.0 * share(count, all));
    line(v.inodes_used, "inode used", "inodes used", used(v.inodes_used, v.inodes));
    let files = v.fragmented_files;
    line(files, "non-contiguous file", "non-contiguous files", of_used(files));
    let directories = v.fragmented_directories;
    line(directories, "non-contiguous directory", "non-contiguous directories", of_used(directories));
    let [single, double, triple] = v.indirect;
    let _ = writeln!(text, "{:13}# of inodes with ind/dind/tind blocks: {single}/{double}/{triple}", "");
    let depths: Vec<String> = v.extent_histogram().iter().map(u64::to_string).collect();
    if !depths.is_empty() {
        let _ = writeln!(text, "{:13}Extent depth histogram: {}", "", depths.join("/"));
    }
    let mut line = |count: u64, one: &str, many: &str, more: String| {
        let _ = writeln!(text, "{count:12} {}{more}", if count == 1 { one } else { many });
    };
    line(v.blocks_used, "block used", "blocks used", used(v.blocks_used, v.blocks));
    line(v.bad_blocks, "bad block", "bad blocks", String::new());
    line(v.large_files, "large file", "large files", "\n".to_owned());
    line(v.regular_files, "regular file", "regular files", String::new());
    line(v.directories, "directory", "directories", String::new());
    line(v.character_devices, "character device file", "character device files", String::new());
    line(v.block_devices, "block device file", "block device files", String::new());
    line(v.fifos, "fifo", "fifos", String::new());
    line(v.links, "link", "links", String::new());
    let fast = if v.fast_symlinks == 1 { "link" } else { "links" };
    let fast = format!(" ({} fast symbolic {fast})", v.fast_symlinks);
    line(v.symlinks, "symbolic link", "symbolic links", fast);
    line(v.sockets, "socket", "sockets", String::new());
    text.push_str("------------\n");
    let files = v.files();
    let _ = writeln!(text, "{files:12} {}", if files == 1 { "file" } else { "files" });
    text
}

/// A part as a share of a whole; 0 if the whole is 0.
#[allow(clippy::cast_precision_loss, reason = "shown with two digits behind the point")]
#[allow(clippy::as_conversions, reason = "there is no other way to a float")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn vitals_json(v: &Vitals) -> serde_json::Value {
    json!({
        "vitals": true,
        "inodes_used": v.inodes_used,
        "inodes": v.inodes,
        "non_contiguous_files": v.fragmented_files,
        "non_contiguous_directories": v.fragmented_directories,
        "indirect": v.indirect,
        "extent_depths": v.extent_histogram(),
        "blocks_used": v.blocks_used,
        "blocks": v.blocks,
        "bad_blocks": v.bad_blocks,
        "large_files": v.large_files,
        "regular_files": v.regular_files,
        "directories": v.directories,
        "character_devices": v.character_devices,
        "block_devices": v.block_devices,
        "fifos": v.fifos,
        "links": v.links,
        "symlinks": v.symlinks,
        "fast_symlinks": v.fast_symlinks,
        "sockets": v.sockets,
        "value_inodes": v.value_inodes,
        "files": v.files(),
    })
}

/// Prints the cost of the whole check as `e2fsck -t` does, and also reads and seeks. With
/// `by_pass`, first prints the cost of each pass, as `-tt` does.
pub(super) fn print_costs(costs: &[PassCost], name: &str, by_pass: bool, output: &Output) {
    let total = PassCost::total(costs);
    let passes = if by_pass { costs } else { &[] };
    if output.json {
        let rows = passes.iter().map(|cost| (json!(cost.pass), cost));
        for (pass, cost) in rows.chain([(json!("all"), &total)]) {
            println!("{}", cost_json(&pass, cost));
        }
        return;
    }
    for cost in passes {
        let who = if cost.pass == 0 { "Begin".to_owned() } else { format!("Pass {}", cost.pass) };
        print!("{}", cost_text(&who, cost));
    }
    print!("{}", cost_text(name, &total));
}

fn cost_text(who: &str, cost: &PassCost) -> String {
    let seconds = |time: std::time::Duration| format!("{:5.2}", time.as_secs_f64());
    let mib = share(cost.bytes, 1 << 20);
    let rate = if cost.real.is_zero() { 0.0 } else { mib / cost.real.as_secs_f64() };
    format!(
        "{who}: Memory used: {}k, time: {}/{}/{}\n{who}: I/O read: {mib:.0}MB, write: 0MB, rate: {rate:.2}MB/s; {} reads, {} seeks\n",
        cost.memory >> 10,
        seconds(cost.real),
        seconds(cost.user),
        seconds(cost.system),
        cost.reads,
        cost.seeks,
    )
}

fn cost_json(pass: &serde_json::Value, cost: &PassCost) -> serde_json::Value {
    json!({
        "cost": true,
        "pass": pass,
        "reads": cost.reads,
        "bytes": cost.bytes,
        "seeks": cost.seeks,
        "real_s": cost.real.as_secs_f64(),
        "user_s": cost.user.as_secs_f64(),
        "system_s": cost.system.as_secs_f64(),
        "memory_bytes": cost.memory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn vitals_read_as_e2fsck_prints_them() {
        let vitals = Vitals {
            inodes_used: 2526,
            inodes: 65536,
            fragmented_files: 4,
            fragmented_directories: 1,
            indirect: [4, 3, 1],
            blocks_used: 40374,
            blocks: 262_144,
            large_files: 1,
            regular_files: 407,
            directories: 4,
            fifos: 1,
            links: 1,
            symlinks: 2102,
            fast_symlinks: 1,
            ..Vitals::default()
        };
        let text = vitals_text(&vitals);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "        2526 inodes used (3.85%, out of 65536)");
        assert_eq!(lines[1], "           4 non-contiguous files (0.2%)");
        assert_eq!(lines[2], "           1 non-contiguous directory (0.0%)");
        assert_eq!(lines[3], "             # of inodes with ind/dind/tind blocks: 4/3/1");
        assert_eq!(lines[4], "       40374 blocks used (15.40%, out of 262144)");
        assert_eq!(lines[6..8], ["           1 large file", ""]);
        assert_eq!(lines[14], "        2102 symbolic links (1 fast symbolic link)");
        assert_eq!(lines.last(), Some(&"        2515 files"));
    }

    #[test]
    fn a_cost_is_two_lines() {
        let real = Duration::from_millis(500);
        let cost = PassCost {
            pass: 1,
            reads: 7,
            bytes: 3 << 20,
            seeks: 2,
            real,
            memory: 8 << 20,
            ..PassCost::default()
        };
        let text = cost_text("Pass 1", &cost);
        assert_eq!(
            text,
            "Pass 1: Memory used: 8192k, time:  0.50/ 0.00/ 0.00\n\
             Pass 1: I/O read: 3MB, write: 0MB, rate: 6.00MB/s; 7 reads, 2 seeks\n"
        );
    }
}
