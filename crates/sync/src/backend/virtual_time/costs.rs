//! What accesses cost, and how far apart CPUs are.

/// One level of the machine's topology: sets of CPUs that are close to each other. Each set has
/// `cpus` consecutive CPU numbers, the first of which is a multiple of `cpus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// CPUs in one set.
    pub cpus: usize,
    /// Moving a line between two CPUs of a set, in nanoseconds.
    pub move_ns: u64,
}

/// What holding a lock costs beyond what the model sees: computation, and plain data that moves
/// with the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Name of the lock's cache line (see [`crate::Backend::on_line`]).
    pub name: &'static str,
    /// Computation each time the lock is held, in nanoseconds.
    pub work_ns: u64,
    /// Lines of plain data that move with the lock when another CPU takes it. When the lock is
    /// first taken, the lines come from memory. Their moves never overlap, whatever
    /// [`Costs::moves_overlap`] is.
    pub lines: u64,
}

/// Clock interrupts: a CPU loses time at each, even while it holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// Period in nanoseconds.
    pub every_ns: u64,
    /// Time lost at each, in nanoseconds.
    pub costs_ns: u64,
}

/// Costs of locks that are not served in turn, such as those of `parking_lot`: the first CPU that
/// finds one free takes it. A CPU that finds a lock taken looks again after pauses that become
/// longer, then after yields, and then sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barging {
    /// One pause of a spin loop, in nanoseconds.
    pub pause_ns: u64,
    /// A system call that yields the CPU when no other thread wants it, in nanoseconds.
    pub yield_ns: u64,
    /// From the release of a lock until the CPU that slept runs again, in nanoseconds.
    pub wake_ns: u64,
    /// What waking a CPU costs the one that released the lock, in nanoseconds.
    pub wake_call_ns: u64,
}

/// What accesses cost, in nanoseconds of virtual time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// An access to a line in the CPU's own cache, in picoseconds: such accesses are many, and each
    /// takes only about a nanosecond. If the line must be moved there first, the access costs this
    /// in addition to the move.
    pub hit_ps: u64,
    /// Fetching a line that no cache has.
    pub miss_ns: u64,
    /// The sets of CPUs, from the smallest to the largest. Each size must divide the next.
    pub levels: Vec<Level>,
    /// Moving a line between CPUs that are in no common set.
    pub move_ns: u64,
    /// Time from the release of a contended lock until the next holder continues, without
    /// `barging`. The move of the lock's line comes on top. Also the time from a notification until
    /// the waiter wakes.
    pub hand_over_ns: u64,
    /// How long a CPU that writes to a line keeps the line from others after it has arrived.
    /// Accesses of this CPU within this time need no second move.
    pub keep_ns: u64,
    /// If several CPUs wait for a line that only one cache has: the probability, in per cent, that
    /// the nearest of them gets the line. Otherwise all of them are equally likely to get it.
    pub neighbours_first_percent: usize,
    /// Whether moves overlap, as on CPUs that execute out of order:
    /// - A CPU goes on while the lines of its loads and stores are on their way, unless it has to
    ///   queue for a line. The CPU waits for all these lines together when it next takes, tries,
    ///   releases or looks at a lock, or does a read-modify-write.
    /// - A CPU needs no second move to write to a line that it has loaded and that no other CPU has
    ///   asked for since.
    /// - If a CPU waits for a lock, the store that releases the lock and the load by which that CPU
    ///   sees the store are one move. (With `barging` they are two, because the next holder is not
    ///   known.)
    pub moves_overlap: bool,
    /// How CPUs get locks that others hold. If this is `None`: in turn, without sleeping.
    pub barging: Option<Barging>,
    /// How far a CPU's clock may be ahead of the clock that is furthest behind. A CPU that is
    /// further ahead lets others run before its next access.
    pub slack_ns: u64,
    /// Costs of holding a lock, by the name of its line. Holding any other lock costs nothing.
    pub sections: Vec<Section>,
    /// Clock interrupts, if any.
    pub tick: Option<Tick>,
}

impl Default for Costs {
    /// Orders of magnitude of a two-socket server: 1 ns in the CPU's own cache, 90 ns from memory,
    /// 60 ns between caches. There is no slack: all accesses happen in the order of virtual time.
    fn default() -> Self {
        Self {
            hit_ps: 1000,
            miss_ns: 90,
            levels: Vec::new(),
            move_ns: 60,
            hand_over_ns: 10,
            keep_ns: 0,
            neighbours_first_percent: 0,
            moves_overlap: false,
            barging: None,
            slack_ns: 0,
            sections: Vec::new(),
            tick: None,
        }
    }
}

impl Costs {
    /// Moving a line from one CPU's cache to another's, in nanoseconds.
    pub(super) fn distance(&self, from: usize, to: usize) -> u64 {
        let near = self.levels.iter().find(|level| from / level.cpus == to / level.cpus);
        near.map_or(self.move_ns, |level| level.move_ns)
    }
}
