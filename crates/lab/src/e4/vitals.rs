//! What e2fsck counts at the end of a check (`-v`): inodes, blocks, files of each kind.

use serde::{Deserialize, Serialize};

use super::PassRow;
use crate::figures::Table;

/// One count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vital {
    /// What is counted.
    pub what: String,
    /// The figure, as printed.
    pub count: String,
}

/// The published counts, of the tree under ext4.
const PUBLISHED: [(&str, &str); 18] = [
    ("inodes used", "312214"),
    ("non-contiguous files", "263"),
    ("non-contiguous directories", "198"),
    ("ind/dind/tind blocks", "0/0/0"),
    ("extent depth", "292698/40"),
    ("blocks used", "4388697"),
    ("bad blocks", "0"),
    ("large files", "1"),
    ("regular files", "263549"),
    ("directories", "28022"),
    ("character device files", "5"),
    ("block device files", "1"),
    ("fifos", "5"),
    ("links", "615"),
    ("symbolic links", "20618"),
    ("fast symbolic links", "19450"),
    ("sockets", "5"),
    ("files", "312820"),
];

/// The counts in e2fsck's output, in its order.
pub(super) fn of_e2fsck(text: &str) -> Vec<Vital> {
    text.lines().flat_map(of_line).collect()
}

/// The counts of a line, if it has any: two if the count of fast symbolic links follows in
/// brackets.
fn of_line(line: &str) -> Vec<Vital> {
    let vital = |what: &str, count: &str| Vital { what: what.to_owned(), count: count.to_owned() };
    let line = line.trim();
    for (label, what) in [
        ("# of inodes with ind/dind/tind blocks: ", "ind/dind/tind blocks"),
        ("Extent depth histogram: ", "extent depth"),
    ] {
        if let Some(count) = line.strip_prefix(label) {
            return vec![vital(what, count)];
        }
    }
    let Some((count, rest)) = line.split_once(' ') else { return Vec::new() };
    if count.is_empty() || !count.bytes().all(|byte| byte.is_ascii_digit()) {
        return Vec::new();
    }
    let (what, inside) = rest.split_once(" (").unwrap_or((rest, ""));
    let Some(what) =
        PUBLISHED.iter().map(|(known, _)| *known).find(|known| singular(known) == singular(what))
    else {
        return Vec::new();
    };
    let fast = ["", "s"].iter().find_map(|end| inside.strip_suffix(&format!(" fast symbolic link{end})")));
    std::iter::once(vital(what, count)).chain(fast.map(|count| vital("fast symbolic links", count))).collect()
}

/// Every word in the singular, which e2fsck prints for a count of one.
fn singular(text: &str) -> String {
    let word = |word: &str| match word.strip_suffix("ies") {
        Some(stem) => format!("{stem}y"),
        None => word.strip_suffix('s').unwrap_or(word).to_owned(),
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// The published counts and ours; `None` without rows, or if a row lacks e2fsck's counts.
#[must_use]
pub fn table(rows: &[PassRow]) -> Option<Table> {
    let first = rows.first()?;
    if rows.iter().any(|row| row.vitals.is_empty()) {
        return None;
    }
    let heads = ["e2fsck -v", "published"]
        .map(str::to_owned)
        .into_iter()
        .chain(rows.iter().map(|row| row.kind.clone()));
    let mut table = Table::new(format!("E4, what e2fsck counts; at scale {}", first.scale), heads);
    for (what, published) in PUBLISHED {
        let ours = rows.iter().map(|row| {
            row.vitals
                .iter()
                .find(|vital| vital.what == what)
                .map_or_else(|| "-".to_owned(), |vital| vital.count.clone())
        });
        table.push([what.to_owned(), published.to_owned()].into_iter().chain(ours));
    }
    table.note("Published: the counts of the tree under ext4 at full scale.");
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_of_e2fsck_is_read() {
        let text = "Pass 5: Checking group summary information\n\n\
      312214 inodes used (14.89%, out of 2097152)\n         263 non-contiguous files (0.1%)\n\
         198 non-contiguous directories (0.1%)\n             # of inodes with ind/dind/tind blocks: 7/8/9\n\
             Extent depth histogram: 292698/40\n     4388697 blocks used (52.32%, out of 8388608)\n\
           0 bad blocks\n           1 large file\n\n      263549 regular files\n       28022 directories\n\
           5 character device files\n           1 block device file\n           5 fifos\n         615 links\n\
       20618 symbolic links (19450 fast symbolic links)\n           5 sockets\n------------\n      312820 files\n\
Memory used: 272k/0k (82k/191k), time:  7.00/ 2.00/ 1.00\n";
        let found = of_e2fsck(text);
        let whats: Vec<&str> = found.iter().map(|vital| vital.what.as_str()).collect();
        assert_eq!(whats, PUBLISHED.map(|(what, _)| what));
        for (vital, (what, published)) in found.iter().zip(PUBLISHED) {
            let expected = if what == "ind/dind/tind blocks" { "7/8/9" } else { published };
            assert_eq!(vital.count, expected, "{what}");
        }
    }

    #[test]
    fn counts_of_one_are_read() {
        let text = "1 inode used (0.1%, out of 9)\n1 non-contiguous file (9.1%)\n\
      1 non-contiguous directory (9.1%)\n1 block used (0.1%, out of 9)\n1 bad block\n1 regular file\n\
      1 directory\n1 fifo\n1 symbolic link (1 fast symbolic link)\n1 socket\n";
        let whats: Vec<String> = of_e2fsck(text).into_iter().map(|vital| vital.what).collect();
        let expected = [
            "inodes used",
            "non-contiguous files",
            "non-contiguous directories",
            "blocks used",
            "bad blocks",
            "regular files",
            "directories",
            "fifos",
            "symbolic links",
            "fast symbolic links",
            "sockets",
        ];
        assert_eq!(whats, expected);
    }
}
