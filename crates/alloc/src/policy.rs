//! Policies are data: a policy names what fills each slot of the mechanism, and a preset is a name for a composition.
//!
//! An arm on the command line is `preset` or `preset:slot=value:slot=value`, with tunables (`mb_max_to_scan=50`) as slots;
//! commas part arms. Combinations that no
//! mechanism can serve are refused here, so the search never meets one.

mod best_fit;
mod first_fit;
mod inode_cursor;
mod linux_6_16;
mod linux_6_18;
mod parse;
mod rotalloc_v1;
mod rralloc;
mod rralloc_v2;
mod rralloc_v3_regular;
pub mod slots;
mod yard;

use crate::tunables::ChosenTunables;
pub use parse::{PolicyError, SlotHelp};
use slots::{
    Accept, Advance, Busy, Choose, CursorStart, DirBlocks, Exempt, FreePending, FreedMerge, FullGroups,
    GoalGroup, IndirectScan, Init, InodeGroup, Ladder, Lanes, Locks, Neighbour, Normalise, OrderIndex,
    Rotation, Scan, ScanToggle, Search, SlotLock, SlotStart, Slots, StreamGoal, Sweep, Visit, When, Zones,
};

/// A composition of decisions. Make one with [`Policy::parse`] or by changing a preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Name of the preset it started from.
    pub preset: &'static str,
    /// Which engine looks for blocks.
    pub search: Search,
    /// How requests grow.
    pub normalise: Normalise,
    /// Clusters of a window under [`Normalise::Window`].
    pub window: u32,
    /// How many stream goals.
    pub slots: Slots,
    /// What guards them.
    pub slot_lock: SlotLock,
    /// Where they stand at open.
    pub slot_start: SlotStart,
    /// Where new files start inside their flex group.
    pub lanes: Lanes,
    /// Whether the goal's group is visited before the index is walked.
    pub goal_group: GoalGroup,
    /// When a file's next block is tried first.
    pub neighbour: Neighbour,
    /// What they carry.
    pub stream_goal: StreamGoal,
    /// Whether the indexes are used.
    pub scan: Scan,
    /// Which criteria.
    pub ladder: Ladder,
    /// What happens at a busy group.
    pub busy: Busy,
    /// How many group locks.
    pub locks: Locks,
    /// Structure of the indexes.
    pub order_index: OrderIndex,
    /// How the index walk reaches groups.
    pub visit: Visit,
    /// Order of sets and ranges.
    pub sweep: Sweep,
    /// How indirect-mapped inodes search.
    pub indirect_scan: IndirectScan,
    /// Full groups in the average index.
    pub full_groups: FullGroups,
    /// Index upkeep while optimised scanning is off.
    pub scan_toggle: ScanToggle,
    /// How pending frees are counted.
    pub free_pending: FreePending,
    /// How pending frees are kept.
    pub freed_merge: FreedMerge,
    /// When groups are loaded.
    pub init: Init,
    /// Which extent of a group.
    pub choose: Choose,
    /// What the cursor search leaves to the ladder.
    pub exempt: Exempt,
    /// Where inodes go.
    pub inode: InodeGroup,
    /// Where directory blocks go.
    pub dir_blocks: DirBlocks,
    /// When blocks are chosen.
    pub when: When,
    /// The cursor search, where `search` asks for it.
    pub cursor: Cursor,
    /// Run-time tunables that begin with another value than their default.
    pub tunables: ChosenTunables,
}

/// Decisions of the cursor search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// How new files are spread.
    pub rotation: Rotation,
    /// Which extents are taken.
    pub accept: Accept,
    /// When a cursor moves.
    pub advance: Advance,
    /// Number of zones.
    pub zones: Zones,
    /// Whether an inode remembers its group.
    pub sticky_inode: bool,
    /// Whether the true neighbour (group and offset) is tried before any cursor; otherwise the goal's group is
    /// replaced by the cursor's and its offset kept, as published.
    pub neighbour_first: bool,
    /// Whether a hit through an inode's cursor moves the CPU's cursor.
    pub inode_moves_cpu: bool,
    /// Length floor in clusters for [`Accept::Floor`].
    pub floor: u32,
    /// Groups that are passed over for being below the floor before any length is accepted.
    pub patience: u32,
    /// Where cursors stand at open.
    pub start: CursorStart,
    /// Bytes after which a cursor moves on, for [`Advance::PerBytes`].
    pub advance_bytes: u32,
    /// Whether an inode's cursor at group 0 counts as none, as published.
    pub zero_is_unset: bool,
}

/// A named composition with its documentation.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The composition; its name is `policy.preset`.
    pub policy: Policy,
    /// Idea, when it wins, when it loses, parameters: the file's own documentation.
    pub source: &'static str,
}

/// Registers a preset: its module's `POLICY` and the text of its file.
macro_rules! preset {
    ($module:ident) => {
        Preset {
            policy: $module::POLICY,
            source: include_str!(concat!("policy/", stringify!($module), ".rs")),
        }
    };
}

/// Every preset: one line each.
pub const PRESETS: &[Preset] = &[
    preset!(linux_6_16),
    preset!(linux_6_18),
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
        linux_6_18::POLICY
    }
}

impl Preset {
    /// The preset of this name.
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

    /// The documentation for people: a paragraph, or an item of a list, an element; without marks of Markdown.
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

/// A text without marks of Markdown and of rustdoc.
fn plain(text: &str) -> String {
    text.replace("[`", "").replace("`]", "").replace("**", "").replace('`', "").trim().to_owned()
}
