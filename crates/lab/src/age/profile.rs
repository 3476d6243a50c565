//! Ageing profiles: the files of a file system and what is done to them, as data, with the sources
//! of the numbers.
//!
//! A profile is a list of kinds of files. Each has sizes, a share of the space for files, and
//! rates: how often a file is created, grows, is overwritten, is rewritten under another name, or
//! is deleted, relative to all rates of the profile.

use anyhow::{Context, Result, ensure};
use blockyard_disk::num::count_as_f64;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::workload::KIB;
use crate::workload::scale::{normal, whole};

const BUILT_IN: [&str; 5] = [
    include_str!("../../profiles/mail.json"),
    include_str!("../../profiles/build.json"),
    include_str!("../../profiles/phone.json"),
    include_str!("../../profiles/vm.json"),
    include_str!("../../profiles/database.json"),
];

/// A profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name on the command line and in rows.
    pub name: String,
    /// A description.
    pub about: String,
    /// Where the numbers come from.
    pub sources: Vec<String>,
    /// Share (0..1) of the free space that files fill.
    pub utilisation: f64,
    /// The kinds of files.
    pub kinds: Vec<Kind>,
}

/// Files that are treated alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    /// Their name.
    pub name: String,
    /// Number of their directories.
    pub directories: u32,
    /// Share (0.001..=1) of the space for files that this kind takes.
    pub share: f64,
    /// Number of files that are created and deleted together, in one directory.
    pub batch: u32,
    /// How they get their size.
    pub made: Made,
    /// Which of them are deleted first.
    pub order: Order,
    /// Whether each change is written back immediately.
    pub fsync: bool,
    /// How strongly changes prefer the newest files. 1: not at all; 3: half of the changes go to
    /// the newest eighth.
    pub newest: f64,
    /// Their sizes.
    pub size: Sizes,
    /// Sizes of appends and overwrites.
    pub piece: Sizes,
    /// How often each operation is drawn.
    pub rates: Rates,
}

/// How a file gets its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Made {
    /// It is written.
    Written,
    /// It is preallocated; overwrites fill it.
    Preallocated,
    /// It has its size but no blocks; overwrites allocate them.
    Sparse,
}

/// Which files are deleted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// A batch drawn at random.
    Any,
    /// The oldest batch.
    Oldest,
}

/// A log-normal distribution. A draw above the largest size becomes that size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sizes {
    /// The median in KiB.
    pub median_kib: f64,
    /// Standard deviation of the natural logarithm.
    pub spread: f64,
    /// The largest, in KiB.
    pub most_kib: u64,
}

/// Weights of the operations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Creating a batch of files.
    pub create: f64,
    /// Appending to a file.
    pub append: f64,
    /// Overwriting a part of a file.
    pub overwrite: f64,
    /// Writing a file under another name, which then replaces it.
    pub replace: f64,
    /// Deleting a batch of files.
    pub delete: f64,
}

impl Profile {
    /// Names of the built-in profiles.
    pub const NAMES: [&str; 5] = ["mail", "build", "phone", "vm", "database"];

    /// Opens a built-in profile, or else a file.
    ///
    /// # Errors
    /// When it is neither, or is inconsistent.
    pub fn open(name: &str) -> Result<Self> {
        if let Some(at) = Self::NAMES.iter().position(|known| *known == name) {
            return Self::parse(BUILT_IN[at]);
        }
        let text = std::fs::read_to_string(name).with_context(|| {
            format!("profile {name}: neither a file nor one of {}", Self::NAMES.join(", "))
        })?;
        Self::parse(&text).with_context(|| format!("profile {name}"))
    }

    fn parse(text: &str) -> Result<Self> {
        let profile: Self = serde_json::from_str(text)?;
        ensure!(
            !profile.name.is_empty() && !profile.kinds.is_empty(),
            "a profile needs a name and kinds of files"
        );
        ensure!(profile.utilisation > 0.0 && profile.utilisation < 1.0, "utilisation: between 0 and 1");
        for kind in &profile.kinds {
            kind.check().with_context(|| format!("kind {:?}", kind.name))?;
        }
        let all: f64 = profile.kinds.iter().map(|kind| kind.share).sum();
        ensure!((0.99..=1.01).contains(&all), "the shares of all kinds must add up to 1, not {all}");
        Ok(profile)
    }
}

impl Kind {
    fn check(&self) -> Result<()> {
        let Rates { create, append, overwrite, replace, delete } = self.rates;
        let rates = [create, append, overwrite, replace, delete];
        ensure!(rates.iter().all(|rate| (0.0..=1e6).contains(rate)), "rates: from 0 to 1000000");
        ensure!(create > 0.0 && delete > 0.0, "rates: create and delete: above 0");
        ensure!((0.001..=1.0).contains(&self.share), "share: from 0.001 to 1");
        ensure!((1..=100_000).contains(&self.batch), "batch: from 1 to 100000");
        ensure!((1..=100_000).contains(&self.directories), "directories: from 1 to 100000");
        ensure!((1.0..=100.0).contains(&self.newest), "newest: from 1 to 100");
        let is_plain_name = self.name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        ensure!(is_plain_name && !self.name.is_empty(), "name: letters and digits");
        ensure!(self.made != Made::Sparse || overwrite > 0.0, "rates: sparse files need overwrites");
        self.size.check().context("size")?;
        self.piece.check().context("piece")
    }
}

impl Sizes {
    fn check(self) -> Result<()> {
        ensure!(
            self.median_kib > 0.0 && self.median_kib <= count_as_f64(self.most_kib),
            "0 < median_kib <= most_kib"
        );
        ensure!((0.0..=10.0).contains(&self.spread), "spread: from 0 to 10");
        ensure!(self.most_kib <= 1 << 34, "most_kib: at most 16 TiB");
        Ok(())
    }

    /// Draws a size in bytes, at least 1.
    pub(super) fn draw(self, random: &mut ChaCha8Rng) -> u64 {
        let kib = self.median_kib * (self.spread * normal(random)).exp();
        whole(kib * count_as_f64(KIB)).clamp(1, self.most_kib * KIB)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn what_is_built_in_can_be_read() {
        for name in Profile::NAMES {
            let profile = Profile::open(name).unwrap();
            assert_eq!(profile.name, name);
            assert!(profile.sources.len() > 1);
        }
    }

    #[test]
    fn what_does_not_hold_together_is_refused() {
        let wrong = |from: &str, to: &str| {
            let text = BUILT_IN[0].replacen(from, to, 1);
            assert_ne!(text, BUILT_IN[0], "{from}");
            format!("{:#}", Profile::parse(&text).unwrap_err())
        };
        assert!(wrong("\"share\": 0.8", "\"share\": 0.5").contains("shares of all kinds"));
        assert!(wrong("\"utilisation\"", "\"use\"").contains("unknown field"));
        assert!(wrong("\"batch\": 1", "\"batch\": 0").contains("kind \"messages\": batch"));
        assert!(wrong("\"create\": 40", "\"create\": 0").contains("create and delete: above 0"));
        assert!(wrong("\"most_kib\": 25600", "\"most_kib\": 5").contains("median_kib <= most_kib"));
        assert!(Profile::open("nowhere").unwrap_err().to_string().contains("mail, build, phone"));
    }

    #[test]
    fn half_of_the_sizes_are_below_the_median() {
        let sizes = Sizes { median_kib: 9.0, spread: 1.7, most_kib: 25_600 };
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let drawn: Vec<u64> = (0..10_000).map(|_| sizes.draw(&mut random)).collect();
        let below = drawn.iter().filter(|size| **size < 9 * KIB).count();
        assert!((4_800..=5_200).contains(&below), "{below}");
        assert!(drawn.iter().all(|size| (1..=25_600 * KIB).contains(size)));
        let fixed = Sizes { median_kib: 16.0, spread: 0.0, most_kib: 16 };
        assert_eq!(fixed.draw(&mut random), 16 * KIB);
    }
}
