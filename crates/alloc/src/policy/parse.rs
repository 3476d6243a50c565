//! Parses policies such as `linux-6.18:slots=one:busy=wait`, prints them back, and refuses
//! combinations that cannot work.

use core::fmt;

use super::composition::Policy;
use super::presets::{PRESETS, Preset, plain};
use super::slots::{
    Accept, Advance, Busy, Choose, ClosedFiles, CursorStart, DirBlocks, Era, Exempt, FirstGroups,
    FreePending, FreedMerge, FreshGroups, FullGroups, GoalBase, GoalColour, GoalGroup, GoalLogical,
    IndirectScan, Init, InodeGroup, Ladder, Lanes, LocalityTies, Locks, Longest, MergeGoal, Neighbour,
    Normalise, OrderIndex, Overflow, Room, Rotation, Scan, ScanToggle, Search, ShortRuns, ShortWindows,
    SlotLock, SlotStart, Slots, SmallFiles, SmallStart, SpaceRetries, StreamFiles, StreamGoal, StreamLearns,
    StripeRule, Sweep, TopFlag, Unloaded, Visit, When, Zones,
};
use crate::tunables::Tunable;

/// Most stream goals that a policy may ask for.
const STREAM_GOALS_MAX: u32 = 65_536;

/// Why a policy text was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No such preset.
    #[error("no policy {0:?}; known: {known}", known = known_presets())]
    UnknownPreset(String),
    /// Not `slot=value`.
    #[error("{0:?} is not slot=value")]
    NotAnOverride(String),
    /// No such slot.
    #[error("no slot {0:?}; known: {known}", known = known_slots())]
    UnknownSlot(String),
    /// The slot has no such filling.
    #[error("slot {slot} has no filling {value:?}; known: {known}")]
    UnknownValue {
        /// The slot.
        slot: &'static str,
        /// What was asked for.
        value: String,
        /// The fillings it has.
        known: String,
    },
    /// The fillings contradict each other.
    #[error("impossible combination: {0}")]
    Impossible(&'static str),
    /// An override changes nothing, because what would use it is not chosen.
    #[error("{slot}={value} changes nothing: only {users} uses it")]
    Unused {
        /// The slot.
        slot: &'static str,
        /// What was asked for.
        value: String,
        /// The fillings that use the slot.
        users: &'static str,
    },
}

/// One slot of a policy as text: its name, how to read it, how to set it, and what may fill it.
struct SlotText {
    name: &'static str,
    value: fn(&Policy) -> String,
    set: fn(&mut Policy, &str) -> bool,
    about: &'static str,
    /// Fillings and their meanings; none for a number.
    fillings: fn() -> Vec<(&'static str, &'static str)>,
}

impl SlotText {
    fn known(&self) -> String {
        let names: Vec<&str> = (self.fillings)().into_iter().map(|(name, _)| name).collect();
        if names.is_empty() { "a number".to_owned() } else { names.join(", ") }
    }
}

/// One decision of a policy, explained for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotHelp {
    /// The name in overrides.
    pub name: &'static str,
    /// What fills it now.
    pub value: String,
    /// What it decides.
    pub about: String,
    /// What may fill it, each with its meaning; empty for a number.
    pub fillings: Vec<(&'static str, String)>,
}

macro_rules! slot_text {
    ($name:literal, $kind:ident, $($field:ident).+) => {
        SlotText {
            name: $name,
            value: |policy| policy.$($field).+.name().to_owned(),
            set: |policy, text| $kind::by_name(text).map(|value| policy.$($field).+ = value).is_some(),
            about: $kind::ABOUT,
            fillings: || $kind::ALL.iter().map(|value| (value.name(), value.about())).collect(),
        }
    };
}

macro_rules! switch_text {
    ($name:literal, $($field:ident).+, $about:literal, $on:literal, $off:literal) => {
        SlotText {
            name: $name,
            value: |policy| if policy.$($field).+ { "on".to_owned() } else { "off".to_owned() },
            set: |policy, text| match text {
                "on" => { policy.$($field).+ = true; true }
                "off" => { policy.$($field).+ = false; true }
                _ => false,
            },
            about: $about,
            fillings: || vec![("on", $on), ("off", $off)],
        }
    };
}

macro_rules! number_text {
    ($name:literal, $($field:ident).+, $about:literal) => {
        SlotText {
            name: $name,
            value: |policy| policy.$($field).+.to_string(),
            set: |policy, text| text.parse().map(|value| policy.$($field).+ = value).is_ok(),
            about: $about,
            fillings: Vec::new,
        }
    };
}

/// Every slot, in the order they are printed.
const SLOTS: &[SlotText] = &[
    slot_text!("search", Search, search),
    slot_text!("normalise", Normalise, normalise),
    number_text!("window", window, "Clusters of a window under normalise=window."),
    slot_text!("slots", Slots, slots),
    number_text!("stream_goals", stream_goals, "Goals under slots=hashed; 0: min(CPUs, ceil(groups / 4))."),
    slot_text!("slot_lock", SlotLock, slot_lock),
    slot_text!("slot_start", SlotStart, slot_start),
    slot_text!("lanes", Lanes, lanes),
    slot_text!("overflow", Overflow, overflow),
    slot_text!("room", Room, room),
    slot_text!("small_start", SmallStart, small_start),
    slot_text!("goal_group", GoalGroup, goal_group),
    slot_text!("neighbour", Neighbour, neighbour),
    slot_text!("stream_goal", StreamGoal, stream_goal),
    slot_text!("scan", Scan, scan),
    slot_text!("ladder", Ladder, ladder),
    slot_text!("busy", Busy, busy),
    slot_text!("locks", Locks, locks),
    slot_text!("order_index", OrderIndex, order_index),
    slot_text!("visit", Visit, visit),
    slot_text!("sweep", Sweep, sweep),
    slot_text!("indirect_scan", IndirectScan, indirect_scan),
    slot_text!("full_groups", FullGroups, full_groups),
    slot_text!("scan_toggle", ScanToggle, scan_toggle),
    slot_text!("free_pending", FreePending, free_pending),
    slot_text!("freed_merge", FreedMerge, freed_merge),
    slot_text!("init", Init, init),
    slot_text!("choose", Choose, choose),
    slot_text!("exempt", Exempt, exempt),
    slot_text!("inode", InodeGroup, inode),
    switch_text!(
        "random_start",
        orlov.random_start,
        "Where the search for the group of a directory under a top directory begins.",
        "At a random flex group (2.6.30).",
        "At the hash of its name."
    ),
    switch_text!(
        "max_dirs_by_group",
        orlov.max_dirs_by_group,
        "How many more directories than the average a flex group may have.",
        "A sixteenth of the inodes of a group (before 6.1).",
        "A sixteenth of the inodes of a flex group."
    ),
    switch_text!(
        "min_clusters_wrap",
        orlov.min_clusters_wrap,
        "What happens where the lower bound of free space would be negative, as on file systems more than three quarters full.",
        "Every flex group fails it (before 6.12).",
        "There is no bound."
    ),
    switch_text!(
        "average_in_blocks",
        orlov.average_in_blocks,
        "The unit in which the average of free space is counted. It matters with clusters of several blocks.",
        "In blocks, so that a bound computed from it is too high for most flex groups (before 5.14).",
        "In clusters."
    ),
    switch_text!(
        "used_dirs_fault",
        orlov.used_dirs_fault,
        "Which count of its flex group a new or deleted directory changes.",
        "The free inodes, by a fault (before 2.6.32).",
        "The directories."
    ),
    switch_text!(
        "debt",
        orlov.debt,
        "Whether groups that got many directories and few files lately are passed over, where directories are placed as by inode=orlov-ext3.",
        "They are (ext2).",
        "They are not: ext3 computed the debt and never used it."
    ),
    slot_text!("top_flag", TopFlag, top_flag),
    slot_text!("dir_blocks", DirBlocks, dir_blocks),
    slot_text!("goal_base", GoalBase, goal_base),
    slot_text!("goal_colour", GoalColour, goal_colour),
    slot_text!("goal_logical", GoalLogical, goal_logical),
    slot_text!("when", When, when),
    slot_text!("era", Era, era),
    slot_text!("first_groups", FirstGroups, first_groups),
    slot_text!("fresh_groups", FreshGroups, fresh_groups),
    slot_text!("unloaded", Unloaded, unloaded),
    slot_text!("stream_files", StreamFiles, stream_files),
    slot_text!("stream_learns", StreamLearns, stream_learns),
    slot_text!("small_files", SmallFiles, small_files),
    slot_text!("closed_files", ClosedFiles, closed_files),
    slot_text!("merge_goal", MergeGoal, merge_goal),
    slot_text!("locality_ties", LocalityTies, locality_ties),
    slot_text!("short_runs", ShortRuns, short_runs),
    slot_text!("stripe_rule", StripeRule, stripe_rule),
    slot_text!("short_windows", ShortWindows, short_windows),
    slot_text!("space_retries", SpaceRetries, space_retries),
    slot_text!("longest", Longest, longest),
    slot_text!("rotation", Rotation, cursor.rotation),
    slot_text!("accept", Accept, cursor.accept),
    slot_text!("advance", Advance, cursor.advance),
    slot_text!("zones", Zones, cursor.zones),
    switch_text!(
        "sticky_inode",
        cursor.sticky_inode,
        "Whether an inode remembers the group it last found space in.",
        "Its next search begins there.",
        "Every search begins at the cursor of the CPU or of the file system (rotation=none: at the goal)."
    ),
    switch_text!(
        "neighbour_first",
        cursor.neighbour_first,
        "What is tried first.",
        "The block right after the file's last one, in its own group.",
        "The offset of that block, in the cursor's group (as published)."
    ),
    switch_text!(
        "inode_moves_cpu",
        cursor.inode_moves_cpu,
        "Whether a hit through an inode's cursor moves the CPU's cursor.",
        "It follows, as published: zones merge when a file is written on another CPU.",
        "It stays, so that zones stay apart."
    ),
    slot_text!("cursor_start", CursorStart, cursor.start),
    switch_text!(
        "zero_is_unset",
        cursor.zero_is_unset,
        "Whether an inode's cursor at group 0 counts as none.",
        "It does, as published: a file cannot remember group 0.",
        "It counts like any other group."
    ),
    number_text!("floor", cursor.floor, "Clusters of the shortest run taken at first, under accept=floor."),
    number_text!(
        "patience",
        cursor.patience,
        "How many groups without a run of the floor's length are passed over before any length is taken."
    ),
    number_text!(
        "advance_bytes",
        cursor.advance_bytes,
        "Bytes after which a cursor moves on, under advance=per-bytes."
    ),
];

/// Slots that have an effect only with some fillings of another slot.
struct Users {
    slots: &'static [&'static str],
    /// Whether a policy has one of these fillings.
    are_chosen: fn(&Policy) -> bool,
    names: &'static str,
}

const fn searches_flex_2008(policy: &Policy) -> bool {
    matches!(policy.inode, InodeGroup::Flex2008 | InodeGroup::Flex2008Fallback)
}

const USERS: [Users; 8] = [
    Users {
        slots: &["random_start", "max_dirs_by_group", "min_clusters_wrap", "average_in_blocks"],
        are_chosen: |policy| matches!(policy.inode, InodeGroup::OrlovFlex | InodeGroup::Orlov2009),
        names: "inode=orlov-flex or orlov-2009",
    },
    Users {
        slots: &["used_dirs_fault"],
        are_chosen: |policy| {
            searches_flex_2008(policy)
                || matches!(policy.inode, InodeGroup::OrlovFlex | InodeGroup::Orlov2009)
        },
        names: "inode=orlov-flex, orlov-2009, flex-2008 or flex-2008-fallback",
    },
    Users {
        // Without flex groups, flex-2008 places directories as orlov-ext3 does.
        slots: &["debt"],
        are_chosen: |policy| searches_flex_2008(policy) || policy.inode == InodeGroup::OrlovExt3,
        names: "inode=orlov-ext3, flex-2008 or flex-2008-fallback",
    },
    Users {
        slots: &["window"],
        are_chosen: |policy| policy.normalise == Normalise::Window,
        names: "normalise=window",
    },
    Users {
        slots: &["stream_goals"],
        are_chosen: |policy| policy.slots == Slots::Hashed,
        names: "slots=hashed",
    },
    Users {
        slots: &["room", "small_start"],
        are_chosen: |policy| policy.goal_group != GoalGroup::Indexed,
        names: "goal_group=first or all",
    },
    Users {
        slots: &["floor", "patience"],
        are_chosen: |policy| policy.cursor.accept == Accept::Floor,
        names: "accept=floor",
    },
    Users {
        slots: &["advance_bytes"],
        are_chosen: |policy| policy.cursor.advance == Advance::PerBytes,
        names: "advance=per-bytes",
    },
];

fn known_presets() -> String {
    PRESETS.iter().map(|preset| preset.policy.preset).collect::<Vec<_>>().join(", ")
}

fn known_slots() -> String {
    let tunables = Tunable::ALL.iter().map(|tunable| tunable.name());
    SLOTS.iter().map(|slot| slot.name).chain(tunables).collect::<Vec<_>>().join(", ")
}

impl Policy {
    /// Parses one policy: a preset's name and overrides, separated by colons.
    ///
    /// # Errors
    /// [`PolicyError`] with the first part that is unknown, with the rule that the combination
    /// breaks, or with an override that nothing uses.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        Self::parse_among(text, &[])
    }

    /// As [`Policy::parse`]. The preset may also be one of `others`, which are policies of another
    /// crate.
    ///
    /// # Errors
    /// As [`Policy::parse`].
    pub fn parse_among(text: &str, others: &[Self]) -> Result<Self, PolicyError> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let other = others.iter().find(|policy| policy.preset == name).copied();
        let preset = || Preset::by_name(name).map(|preset| preset.policy);
        let mut policy = other.or_else(preset).ok_or_else(|| PolicyError::UnknownPreset(name.to_owned()))?;
        let begun = policy;
        for part in parts {
            policy.set(part)?;
        }
        policy.check()?;
        policy.check_used(&begun)?;
        Ok(policy)
    }

    /// Refuses an override of a slot that the chosen fillings of the other slots do not use.
    fn check_used(&self, begun: &Self) -> Result<(), PolicyError> {
        let unchosen = USERS.iter().filter(|users| !(users.are_chosen)(self));
        for (users, name) in unchosen.flat_map(|users| users.slots.iter().map(move |name| (users, name))) {
            let slot = SLOTS.iter().find(|slot| slot.name == *name).expect("USERS names slots");
            let value = (slot.value)(self);
            if value != (slot.value)(begun) {
                return Err(PolicyError::Unused { slot: slot.name, value, users: users.names });
            }
        }
        Ok(())
    }

    /// Parses policies separated by commas.
    ///
    /// # Errors
    /// As [`Policy::parse`].
    pub fn parse_arms(text: &str) -> Result<Vec<Self>, PolicyError> {
        text.split(',').map(Self::parse).collect()
    }

    fn set(&mut self, part: &str) -> Result<(), PolicyError> {
        let (name, value) =
            part.split_once('=').ok_or_else(|| PolicyError::NotAnOverride(part.to_owned()))?;
        if let Some(tunable) = Tunable::by_name(name) {
            return self.set_tunable(tunable, value);
        }
        let slot = SLOTS
            .iter()
            .find(|slot| slot.name == name)
            .ok_or_else(|| PolicyError::UnknownSlot(name.to_owned()))?;
        if (slot.set)(self, value) {
            return Ok(());
        }
        Err(PolicyError::UnknownValue { slot: slot.name, value: value.to_owned(), known: slot.known() })
    }

    fn set_tunable(&mut self, tunable: Tunable, text: &str) -> Result<(), PolicyError> {
        match text.parse() {
            Ok(value) if value <= tunable.largest() => {
                self.tunables.choose(tunable, value);
                Ok(())
            }
            _ => Err(PolicyError::UnknownValue {
                slot: tunable.name(),
                value: text.to_owned(),
                known: format!("numbers from 0 to {}", tunable.largest()),
            }),
        }
    }

    /// Refuses combinations that the mechanism cannot serve.
    ///
    /// # Errors
    /// [`PolicyError::Impossible`] with the rule that is broken.
    pub fn check(&self) -> Result<(), PolicyError> {
        let rule = |holds: bool, why| if holds { Ok(()) } else { Err(PolicyError::Impossible(why)) };
        rule(
            self.sweep == Sweep::PerSet || self.visit == Visit::Scan,
            "sweep=per-range needs visit=scan: a pick always starts again and cannot sweep a range",
        )?;
        rule(
            self.visit == Visit::Choose || self.order_index == OrderIndex::ByGroup,
            "visit=scan needs order_index=by-group: a list cannot be walked while groups move in it",
        )?;
        rule(
            self.stream_goals <= STREAM_GOALS_MAX,
            "stream_goals is at most 65536: no machine has more writers than that",
        )?;
        rule(
            self.normalise != Normalise::Window || self.window > 0,
            "normalise=window needs window=CLUSTERS above 0",
        )?;
        rule(
            self.cursor.accept != Accept::Floor || self.cursor.floor > 0,
            "accept=floor needs floor=CLUSTERS above 0",
        )?;
        rule(
            self.cursor.advance != Advance::PerBytes || self.cursor.advance_bytes > 0,
            "advance=per-bytes needs advance_bytes=BYTES above 0",
        )?;
        rule(
            self.search != Search::Code || self.code.searches(),
            "search=code needs a policy with code: one that a program gives to the library",
        )?;
        rule(
            self.choose != Choose::Code || self.code.chooses(),
            "choose=code needs a policy with code: one that a program gives to the library",
        )
    }

    /// Name and filling of every slot, in printing order.
    pub fn slots(&self) -> impl Iterator<Item = (&'static str, String)> {
        SLOTS.iter().map(|slot| (slot.name, (slot.value)(self)))
    }

    /// Every slot with what fills it and what that means, in printing order.
    pub fn explained(&self) -> impl Iterator<Item = SlotHelp> {
        SLOTS.iter().map(|slot| {
            // The documentation of a slot's enum begins with the slot's name, which `name` already
            // gives. Switches and numbers have no such beginning.
            let about = plain(slot.about);
            let about =
                about.strip_prefix(slot.name).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&about);
            SlotHelp {
                name: slot.name,
                value: (slot.value)(self),
                about: about.to_owned(),
                fillings: (slot.fillings)().into_iter().map(|(name, about)| (name, plain(about))).collect(),
            }
        })
    }
}

impl fmt::Display for Policy {
    /// The shortest text that [`Policy::parse`] reads back. For a policy of another crate, this is
    /// only the name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.preset)?;
        let Some(preset) = Preset::by_name(self.preset) else { return Ok(()) };
        for slot in SLOTS {
            let value = (slot.value)(self);
            if value != (slot.value)(&preset.policy) {
                write!(f, ":{}={value}", slot.name)?;
            }
        }
        for &tunable in Tunable::ALL {
            match self.tunables.value(tunable) {
                Some(value) if preset.policy.tunables.value(tunable) != Some(value) => {
                    write!(f, ":{}={value}", tunable.name())?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_change_slots_and_print_back() {
        let policy = Policy::parse("linux-6.18:slots=one:busy=wait").unwrap();
        assert_eq!((policy.slots, policy.busy), (Slots::One, Busy::Wait));
        assert_eq!(policy.to_string(), "linux-6.18:slots=one:busy=wait");
        assert_eq!(Policy::parse(&policy.to_string()), Ok(policy));
    }

    /// Earlier, tunables could be set only on an open file system, not in the text of a policy.
    #[test]
    fn tunables_are_overrides_too() {
        let policy = Policy::parse("linux-6.18:mb_max_to_scan=50:busy=wait:mb_group_prealloc=0").unwrap();
        assert_eq!(policy.tunables.value(Tunable::MaxToScan), Some(50));
        assert_eq!(policy.tunables.value(Tunable::MinToScan), None);
        assert_eq!(policy.to_string(), "linux-6.18:busy=wait:mb_max_to_scan=50:mb_group_prealloc=0");
        assert_eq!(Policy::parse(&policy.to_string()), Ok(policy));
        for (wrong, why) in [
            ("yard:mb_max_to_scan=many", "numbers from 0 to 4294967295"),
            ("yard:mb_best_avail_max_trim_order=65", "numbers from 0 to 64"),
            ("yard:mb_max_to_scan=-1", "has no filling \"-1\""),
            ("yard:mb_nothing=1", "mb_prefetch_limit"),
        ] {
            let text = Policy::parse(wrong).unwrap_err().to_string();
            assert!(text.contains(why), "{wrong}: {text}");
        }
    }

    /// Earlier, fillings were names without an explanation, and presets were printed with the marks
    /// of rustdoc.
    #[test]
    fn everything_is_explained_in_plain_words() {
        let is_plain =
            |text: &str| !text.contains(['`', '[', ']']) && !text.contains("**") && !text.contains("crate::");
        for preset in PRESETS {
            for slot in preset.policy.explained() {
                let texts = slot.fillings.iter().map(|(_, about)| about).chain([&slot.about]);
                for text in texts {
                    assert!(
                        text.len() > 4 && is_plain(text),
                        "{} {}: {text:?}",
                        preset.policy.preset,
                        slot.name
                    );
                }
                let holds = slot.fillings.iter().any(|(name, _)| *name == slot.value);
                assert!(holds || slot.fillings.is_empty(), "{}", slot.name);
            }
            assert!(preset.paragraphs().iter().all(|text| is_plain(text) && !text.starts_with('#')));
        }
        for tunable in Tunable::ALL {
            assert!(!tunable.about().is_empty() && !tunable.default_words().is_empty());
        }
    }

    #[test]
    fn impossible_combinations_are_refused_by_rule() {
        let refused = |text: &str| matches!(Policy::parse(text), Err(PolicyError::Impossible(_)));
        assert!(refused("linux-6.18:visit=choose"));
        assert!(refused("linux-6.18:order_index=fifo:sweep=per-set"));
        assert!(!refused("linux-6.18:order_index=fifo:sweep=per-set:visit=choose"));
        assert!(refused("linux-6.18:normalise=window"), "of what length?");
        assert!(!refused("linux-6.18:normalise=window:window=64"));
    }

    /// Earlier, an override that no chosen filling uses was accepted and had no effect.
    #[test]
    fn overrides_that_nothing_uses_are_refused() {
        for (text, why) in [
            ("linux-6.18:debt=on", "debt=on changes nothing: only inode=orlov-ext3, flex-2008 "),
            ("linux-6.18:inode=flex-2008:random_start=on", "only inode=orlov-flex or orlov-2009 uses it"),
            ("ext3:used_dirs_fault=on", "used_dirs_fault=on"),
            ("linux-6.18:window=64", "normalise=window"),
            ("linux-6.18:stream_goals=7:slots=one", "slots=hashed"),
            ("linux-6.18:room=run", "only goal_group=first or all uses it"),
            ("linux-6.18:small_start=run", "only goal_group=first or all uses it"),
            ("rralloc-v2:floor=64", "accept=floor"),
            ("rralloc-v2:advance_bytes=64", "advance=per-bytes"),
        ] {
            let refused = Policy::parse(text).unwrap_err().to_string();
            assert!(refused.contains(why), "{text}: {refused}");
        }
        for text in [
            "linux-6.18:debt=off",
            "linux-6.18:debt=on:inode=orlov-ext3",
            "ext4-2009:inode=parent",
            "ext4-2008:debt=on",
            "linux-6.18:room=run:goal_group=first",
            "yard:goal_group=indexed",
        ] {
            assert!(Policy::parse(text).is_ok(), "{text}");
        }
        for users in USERS {
            let known = |name: &&&str| SLOTS.iter().any(|slot| slot.name == **name);
            assert_eq!(users.slots.iter().filter(known).count(), users.slots.len(), "{:?}", users.slots);
        }
    }

    #[test]
    fn unknown_names_are_listed_with_what_is_known() {
        let text = Policy::parse("linux-6.18:busy=maybe").unwrap_err().to_string();
        assert_eq!(text, "slot busy has no filling \"maybe\"; known: wait, skip");
        assert!(Policy::parse("linux-7").unwrap_err().to_string().contains("linux-6.18"));
    }

    #[test]
    fn every_preset_is_possible_and_documented() {
        let page = include_str!("../../../../docs/policies/presets.md");
        for preset in PRESETS {
            assert_eq!(preset.policy.check(), Ok(()), "{}", preset.policy.preset);
            let text = preset.documentation().collect::<Vec<_>>().join("\n");
            for part in ["**Idea.**", "**When it wins.**", "**When it loses.**", "**Parameters.**"] {
                assert!(text.contains(part), "{} lacks {part}", preset.policy.preset);
            }
            assert!(
                page.contains(&text),
                "docs/policies/presets.md tells another story of {}",
                preset.policy.preset
            );
        }
    }
}
