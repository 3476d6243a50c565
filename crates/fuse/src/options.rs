//! The mount options of `-o`, in the words of ext4 and FUSE.
//!
//! An option of ext4 that this mount lacks is refused by name: to accept it would be a false
//! promise.

use std::time::Duration;

use blockyard::alloc::Policy;
use blockyard::disk::superblock::ErrorPolicy;
use blockyard::{AccessTimes, DataMode};
use rustix::mount::MountFlags;

/// A mount option that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// ext4 has the option, this mount does not.
    #[error("option {name}: {why}")]
    Unsupported {
        /// The option.
        name: String,
        /// Why, or what to do.
        why: &'static str,
    },
    /// Neither ext4 nor this mount has the option; or the option lacks a value that it needs, or
    /// has one that it does not take.
    #[error("unknown option {0}")]
    Unknown(String),
    /// The value is invalid.
    #[error("option {name}={value}: {why}")]
    Value {
        /// The option.
        name: String,
        /// What was given.
        value: String,
        /// Which values are valid.
        why: String,
    },
}

/// How an image is mounted.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "mount options are independent")]
pub struct Options {
    /// The image is not changed. Its journal is recovered in memory.
    pub read_only: bool,
    /// Change the options of the existing mount.
    pub remount: bool,
    /// When reads update access times.
    pub access_times: AccessTimes,
    /// Age at which changes are committed.
    pub commit: Duration,
    /// The allocation policy: how blocks and inodes are chosen.
    pub policy: Policy,
    /// Whether blocks are chosen at write-back. Otherwise they are chosen at the write.
    pub delayed_allocation: bool,
    /// How the journal treats file data.
    pub data: DataMode,
    /// What to do when damage is found; `None` follows the superblock.
    pub errors: Option<ErrorPolicy>,
    /// Users other than the one who mounts may use the mount.
    pub allow_other: bool,
    /// Byte of the file where the image begins; `None` is 0.
    pub offset: Option<u64>,
    /// Device files can be opened.
    pub devices: bool,
    /// Set-id bits and file capabilities take effect.
    pub set_id: bool,
    /// Programs can be run.
    pub execution: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            read_only: false,
            remount: false,
            access_times: AccessTimes::Relative,
            commit: Duration::from_secs(5),
            policy: Policy::default(),
            delayed_allocation: true,
            data: DataMode::Ordered,
            errors: None,
            allow_other: false,
            offset: None,
            devices: true,
            set_id: true,
            execution: true,
        }
    }
}

/// Options of ext4 that this mount lacks, and why.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("abort", "not supported"),
    ("noauto_da_alloc", "files that replace others are always written back first"),
    ("bh", "not supported"),
    ("noblock_validity", "blocks are always validated"),
    ("minixdf", "statfs leaves the file system's own blocks out"),
    ("bsdgroups", "files get the group of their creator, or of a set-group-ID directory"),
    ("grpid", "files get the group of their creator, or of a set-group-ID directory"),
    ("dax", "FUSE maps no device memory here"),
    ("debug", "not supported"),
    ("debug_want_extra_isize", "not supported"),
    ("dioread_lock", "not supported"),
    ("dioread_nolock", "not supported"),
    ("dirsync", "fsync of the directory says what must be durable"),
    ("discard", "freed blocks are not discarded automatically: use fstrim"),
    ("grpquota", "quota is not supported"),
    ("inlinecrypt", "encryption is not supported"),
    ("init_itable", "inode tables are not zeroed in the background"),
    ("inode_readahead_blks", "not supported"),
    ("i_version", "not supported"),
    ("journal_async_commit", "commits are always ordered"),
    ("journal_checksum", "the journal has checksums where its superblock says so"),
    ("journal_dev", "a journal on a device of its own is not supported"),
    ("journal_ioprio", "not supported"),
    ("journal_path", "a journal on a device of its own is not supported"),
    ("jqfmt", "quota is not supported"),
    ("lazytime", "not supported"),
    ("max_batch_time", "concurrent fsyncs share a commit anyway"),
    ("max_dir_size_kb", "not supported"),
    ("mblk_io_submit", "not supported"),
    ("min_batch_time", "concurrent fsyncs share a commit anyway"),
    ("nobarrier", "the device is always flushed; that is what fsync promises"),
    ("nobh", "not supported"),
    ("noacl", "access control lists are always kept"),
    ("nodiscard_on_free", "not supported"),
    ("noinit_itable", "not supported"),
    ("nojournal_checksum", "the journal has checksums where its superblock says so"),
    ("noload", "the journal is always recovered: with ro in memory"),
    ("nombcache", "not supported"),
    ("norecovery", "the journal is always recovered: with ro in memory"),
    ("nouid32", "not supported"),
    ("nouser_xattr", "user attributes are always kept"),
    ("oldalloc", "use policy=ext3:inode=oldalloc"),
    ("orlov", "is part of the policy"),
    ("prjquota", "quota is not supported"),
    ("quota", "quota is not supported"),
    ("resgid", "reserved blocks are root's"),
    ("resuid", "reserved blocks are root's"),
    ("sb", "a backup superblock cannot be mounted: repair the image with blockyard check -b"),
    ("stripe", "not supported"),
    ("sync", "fsync says what must be durable"),
    ("test_dummy_encryption", "encryption is not supported"),
    ("usrjquota", "quota is not supported"),
    ("grpjquota", "quota is not supported"),
    ("usrquota", "quota is not supported"),
    ("warn_on_error", "not supported"),
];

/// Options that change nothing: they match the behaviour here, or concern only mount(8).
const NO_CHANGE: &[&str] = &[
    "defaults",
    "rw",
    "default_permissions",
    "acl",
    "user_xattr",
    "nodiscard",
    "nogrpid",
    "sysvgroups",
    "noquota",
    "nolazytime",
    "async",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "group",
    "_netdev",
    "nofail",
    "silent",
    "loud",
    "nomand",
    "diratime",
    "noiversion",
    "block_validity",
    "auto_da_alloc",
    "bsddf",
];

impl Options {
    /// Parses comma-separated lists as if they were one list. If options contradict each other, the
    /// last one counts. But `mb_optimize_scan` changes the policy even if `policy` comes later.
    ///
    /// # Errors
    /// Names the option that is refused.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<Self, OptionError> {
        let (mut options, mut scan) = (Self::default(), None);
        for option in lists.into_iter().flat_map(|list| list.split(',')) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            if name == "mb_optimize_scan" {
                scan = Some(scan_of(value)?);
                continue;
            }
            let is_known = match value {
                None => options.set_word(name),
                Some(value) => options.set_value(name, value)?,
            };
            if !is_known {
                return Err(unknown(name, option));
            }
        }
        if let Some(scan) = scan {
            options.policy = with_scan(&options.policy, scan)?;
        }
        Ok(options)
    }

    /// The kernel's mount flags for these options.
    #[must_use]
    pub fn mount_flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NODEV, !self.devices);
        flags.set(MountFlags::NOSUID, !self.set_id);
        flags.set(MountFlags::NOEXEC, !self.execution);
        // The server decides about access times; these flags show what it does.
        flags.set(MountFlags::NOATIME, self.access_times == AccessTimes::Never);
        flags.set(MountFlags::STRICTATIME, self.access_times == AccessTimes::Always);
        flags
    }

    /// Applies an option without a value; false if no option of that name works without one.
    fn set_word(&mut self, name: &str) -> bool {
        match name {
            "" => {}
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "remount" => self.remount = true,
            "noatime" => self.access_times = AccessTimes::Never,
            "relatime" | "atime" => self.access_times = AccessTimes::Relative,
            "strictatime" => self.access_times = AccessTimes::Always,
            "delalloc" => self.delayed_allocation = true,
            "nodelalloc" => self.delayed_allocation = false,
            "allow_other" => self.allow_other = true,
            "dev" => self.devices = true,
            "nodev" => self.devices = false,
            "suid" => self.set_id = true,
            "nosuid" => self.set_id = false,
            "exec" => self.execution = true,
            "noexec" => self.execution = false,
            "barrier" => {}
            name => return NO_CHANGE.contains(&name) || name.starts_with("x-"),
        }
        true
    }

    /// Applies an option with a value; false if no option of that name takes a value, and for
    /// `barrier` with a value other than 1.
    fn set_value(&mut self, name: &str, value: &str) -> Result<bool, OptionError> {
        let wrong =
            |why: &str| OptionError::Value { name: name.into(), value: value.into(), why: why.into() };
        match name {
            "commit" => {
                let seconds: u32 = value.parse().map_err(|_| wrong("a number of seconds"))?;
                // 0 is the default, as in ext4.
                self.commit = Duration::from_secs(if seconds == 0 { 5 } else { seconds.into() });
            }
            "policy" => self.policy = Policy::parse(value).map_err(|error| wrong(&error.to_string()))?,
            "data" => {
                self.data = match value {
                    "ordered" => DataMode::Ordered,
                    "writeback" => DataMode::Writeback,
                    "journal" => DataMode::Journal,
                    _ => return Err(wrong("ordered, writeback or journal")),
                }
            }
            "errors" => {
                self.errors = Some(match value {
                    "continue" => ErrorPolicy::Continue,
                    "remount-ro" => ErrorPolicy::RemountReadOnly,
                    "panic" => {
                        return Err(wrong(
                            "continue or remount-ro: a server in user space cannot stop the machine",
                        ));
                    }
                    _ => return Err(wrong("continue or remount-ro")),
                });
            }
            "offset" => {
                self.offset = Some(value.parse().map_err(|_| wrong("a number of bytes"))?);
            }
            "barrier" if value == "1" => {}
            "fsname" | "subtype" | "comment" => {}
            name => return Ok(name.starts_with("x-")),
        }
        Ok(true)
    }
}

fn unknown(name: &str, option: &str) -> OptionError {
    match UNSUPPORTED.iter().find(|(known, _)| *known == name) {
        Some((_, why)) => OptionError::Unsupported { name: option.to_owned(), why },
        None if name == "barrier" => {
            OptionError::Unsupported { name: option.to_owned(), why: "the device is always flushed" }
        }
        None => OptionError::Unknown(option.to_owned()),
    }
}

/// The value of the policy's slot `scan` that `mb_optimize_scan=` asks for.
fn scan_of(value: Option<&str>) -> Result<&'static str, OptionError> {
    match value {
        None | Some("1") => Ok("optimized"),
        Some("0") => Ok("linear"),
        Some(value) => Err(OptionError::Value {
            name: "mb_optimize_scan".to_owned(),
            value: value.to_owned(),
            why: "0 or 1".to_owned(),
        }),
    }
}

fn with_scan(policy: &Policy, scan: &str) -> Result<Policy, OptionError> {
    let text = format!("{policy}:scan={scan}");
    Policy::parse(&text).map_err(|error| OptionError::Value {
        name: "mb_optimize_scan".to_owned(),
        value: scan.to_owned(),
        why: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::{OptionError, Options};
    use blockyard::{AccessTimes, DataMode};
    use std::time::Duration;

    fn parse(list: &str) -> Result<Options, OptionError> {
        Options::parse([list])
    }

    #[test]
    fn what_is_given_is_kept() {
        let options =
            parse("ro,noatime,commit=30,data=writeback,nodelalloc,allow_other,offset=1048576,nosuid")
                .unwrap();
        assert!(options.read_only && options.allow_other && !options.delayed_allocation && !options.set_id);
        assert_eq!(options.access_times, AccessTimes::Never);
        assert_eq!((options.commit, options.data), (Duration::from_secs(30), DataMode::Writeback));
        assert_eq!(options.offset, Some(1 << 20));
        assert_eq!(parse("").unwrap(), Options::default());
        assert_eq!(parse("defaults,x-systemd.automount,nofail,,acl").unwrap(), Options::default());
        assert!(!parse("ro,rw").unwrap().read_only, "the last counts");
        assert_eq!(parse("commit=0").unwrap().commit, Duration::from_secs(5));
    }

    #[test]
    fn a_policy_takes_overrides_and_the_switch_of_linux() {
        let options = parse("mb_optimize_scan=0,policy=linux-6.18:busy=wait").unwrap();
        assert_eq!(options.policy.to_string(), "linux-6.18:scan=linear:busy=wait");
        assert!(parse("policy=none-such").is_err());
        assert!(parse("mb_optimize_scan=2").is_err());
    }

    #[test]
    fn what_there_is_not_is_refused_by_name() {
        let told = |list: &str| parse(list).unwrap_err().to_string();
        assert_eq!(told("ro,usrquota"), "option usrquota: quota is not supported");
        assert_eq!(told("jqfmt=vfsv0"), "option jqfmt=vfsv0: quota is not supported");
        assert_eq!(told("barrier=0"), "option barrier=0: the device is always flushed");
        assert_eq!(told("shiny"), "unknown option shiny");
        assert_eq!(told("shiny=1"), "unknown option shiny=1");
        assert_eq!(told("commit=soon"), "option commit=soon: a number of seconds");
        assert!(told("errors=panic").contains("remount-ro"));
    }
}
