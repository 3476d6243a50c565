//! What a mount option means for the engine.
//!
//! Key decision: an option that the engine does not follow is refused. Otherwise the two sides
//! would run under different rules, and a difference between them would mean nothing.

use anyhow::{Context, Result, bail};
use blockyard_alloc::Policy;
use blockyard_engine::{DataMode, OpenOptions};

/// What the engine does to follow the kernel's mount options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MountOptions {
    policy: &'static str,
    data: DataMode,
    delays: bool,
    stripe: Option<u32>,
}

impl MountOptions {
    /// Parses comma-separated options.
    ///
    /// # Errors
    /// Names the first option that the engine does not follow, or whose value it cannot parse.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut parsed = Self { policy: "linux-6.18", data: DataMode::Ordered, delays: true, stripe: None };
        for option in text.split(',').filter(|option| !option.is_empty()) {
            parsed.add(option)?;
        }
        // With data=journal, Linux chooses blocks as data is written (observed on 6.18).
        parsed.delays &= parsed.data != DataMode::Journal;
        Ok(parsed)
    }

    fn add(&mut self, option: &str) -> Result<()> {
        match option.split_once('=').unwrap_or((option, "")) {
            ("mb_optimize_scan", "0") => self.policy = "linux-6.18:scan=linear",
            ("mb_optimize_scan", "1") => self.policy = "linux-6.18:scan=optimized",
            ("data", "ordered") => self.data = DataMode::Ordered,
            ("data", "writeback") => self.data = DataMode::Writeback,
            ("data", "journal") => self.data = DataMode::Journal,
            ("delalloc", "") => self.delays = true,
            ("nodelalloc", "") => self.delays = false,
            ("stripe", blocks) => {
                self.stripe = Some(blocks.parse().with_context(|| format!("mount option {option}"))?);
            }
            // The recording tells the engine when the kernel committed.
            ("commit", _) => {}
            _ => bail!("the engine does not follow the mount option {option}: only --ceiling accepts it"),
        }
        Ok(())
    }

    /// Sets in `options` what makes the engine follow these mount options.
    ///
    /// # Errors
    /// Those of parsing the policy.
    pub(super) fn apply(self, mut options: OpenOptions) -> Result<OpenOptions> {
        options.policy = Policy::parse(self.policy)?;
        options.data = self.data;
        options.delayed_allocation = self.delays;
        options.instruments.stripe = self.stripe;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_the_engine_does_not_follow_are_refused() {
        let parsed = MountOptions::parse("mb_optimize_scan=0,data=writeback,,nodelalloc,stripe=48").unwrap();
        let expected = MountOptions {
            policy: "linux-6.18:scan=linear",
            data: DataMode::Writeback,
            delays: false,
            stripe: Some(48),
        };
        assert_eq!(parsed, expected);
        for wrong in ["max_dir_size_kb=4", "data=elsewhere", "mb_optimize_scan", "noauto_da_alloc"] {
            let refused = MountOptions::parse(&format!("nodelalloc,{wrong}")).unwrap_err().to_string();
            assert!(refused.contains(wrong), "{refused}");
        }
        assert!(MountOptions::parse("stripe=wide").is_err());
    }
}
