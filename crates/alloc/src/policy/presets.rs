//! The presets: compositions with a name. Each has a file of its own, which begins with the
//! documentation of the preset.

use super::composition::Policy;

/// A named composition with its documentation.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The composition; its name is `policy.preset`.
    pub policy: Policy,
    /// The text of its file. It begins with the documentation: idea, when it wins, when it loses,
    /// parameters.
    pub source: &'static str,
}

/// Registers a preset: its module's `POLICY` and the text of its file.
macro_rules! preset {
    ($module:ident) => {
        Preset { policy: super::$module::POLICY, source: include_str!(concat!(stringify!($module), ".rs")) }
    };
}

/// Every preset, one per line.
pub const PRESETS: &[Preset] = &[
    preset!(linux_6_16),
    preset!(linux_6_18),
    preset!(ext3),
    preset!(ext4_2008),
    preset!(ext4_2009),
    preset!(rotalloc_v1),
    preset!(rralloc_v2),
    preset!(rralloc_v3_regular),
    preset!(inode_cursor),
    preset!(rralloc),
    preset!(first_fit),
    preset!(best_fit),
    preset!(yard),
];

impl Default for Policy {
    fn default() -> Self {
        super::linux_6_18::POLICY
    }
}

impl Preset {
    /// The preset of this name; `None` if there is none.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Preset> {
        PRESETS.iter().find(|preset| preset.policy.preset == name)
    }

    /// The documentation of the preset, as written at the top of its file.
    pub fn documentation(&self) -> impl Iterator<Item = &'static str> {
        self.source
            .lines()
            .map_while(|line| line.strip_prefix("//!"))
            .map(|line| line.strip_prefix(' ').unwrap_or(line))
    }

    /// The documentation for users, without Markdown. One element per paragraph or list item.
    #[must_use]
    pub fn paragraphs(&self) -> Vec<String> {
        let mut paragraphs = vec![String::new()];
        for line in self.documentation() {
            let is_item = line.starts_with("- ");
            match paragraphs.last_mut() {
                Some(last) if !is_item && !last.is_empty() && !line.is_empty() => {
                    last.push(' ');
                    last.push_str(line.trim());
                }
                Some(last) if last.is_empty() => last.push_str(line),
                _ => paragraphs.push(line.to_owned()),
            }
        }
        paragraphs.iter().map(|text| plain(text.trim_start_matches("# "))).collect()
    }
}

/// A text without marks of Markdown and rustdoc.
pub(super) fn plain(text: &str) -> String {
    text.replace("[`", "").replace("`]", "").replace("**", "").replace('`', "").trim().to_owned()
}
