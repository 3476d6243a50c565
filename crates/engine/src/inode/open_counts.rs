//! Open references of an inode: how many there are, and how many may write.
//!
//! Opening holds the content lock shared and checks under it that the inode is not deleted. (The
//! creator of an inode opens it without that lock, before anybody else can delete it.) Deleting
//! holds the content lock exclusively and reads the counts under it. So an open inode is never
//! deleted. An inode without links is deleted exactly once: either by the thread that ends the last
//! reference and then sees no links, or by the thread that removes the last link and then sees no
//! references. The link count is changed and read under the core lock, so at least one of the two
//! threads sees what the other did. If both try to delete the inode, the second finds it deleted.

use blockyard_sync::{Atomic, AtomicInt, Backend, Native, Ordering};

/// Open references of an inode.
pub(crate) struct OpenCounts<B: Backend = Native> {
    /// All references. The release in [`Self::end`] pairs with the acquire of the deletion, so
    /// everything done through a reference happens before the deletion.
    all: B::AtomicU32,
    /// References that may write.
    writers: B::AtomicU32,
}

impl<B: Backend> OpenCounts<B> {
    /// No references.
    pub(crate) fn none() -> Self {
        Self { all: B::AtomicU32::new(0), writers: B::AtomicU32::new(0) }
    }

    /// Adds a reference; `write` says whether it may write.
    pub(crate) fn open(&self, write: bool) {
        self.all.fetch_add(1, Ordering::AcqRel);
        if write {
            self.writers.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whether there is a reference and, if `write` is true, also one that may write.
    pub(crate) fn has(&self, write: bool) -> bool {
        self.is_open() && (!write || self.has_writer())
    }

    /// Ends a reference's right to write. Returns whether it was the last that may write. The
    /// caller must then end the reference itself.
    pub(crate) fn end_writer(&self) -> bool {
        one_less::<B>(&self.writers)
    }

    /// Ends a reference. Returns whether it was the last.
    pub(crate) fn end(&self) -> bool {
        one_less::<B>(&self.all)
    }

    /// Whether there is any reference.
    pub(crate) fn is_open(&self) -> bool {
        self.all.load(Ordering::Acquire) > 0
    }

    /// Whether there is a reference that may write.
    pub(crate) fn has_writer(&self) -> bool {
        self.writers.load(Ordering::Acquire) > 0
    }

    /// Ends all references at once.
    pub(crate) fn end_all(&self) {
        self.all.store(0, Ordering::Release);
    }
}

/// Decrements a count. Returns whether this made it 0. A count that is already 0 stays 0.
fn one_less<B: Backend>(count: &B::AtomicU32) -> bool {
    let before = count.update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1));
    debug_assert!(before.is_ok(), "a reference ends that nobody began");
    before == Ok(1)
}

#[cfg(test)]
mod tests {
    use super::OpenCounts;
    use blockyard_sync::{Backend, Ordering, RwLock, Shuttle, rank};
    use shuttle::thread;
    use std::sync::Arc;

    type AtomicU32 = <Shuttle as Backend>::AtomicU32;

    /// The parts of an inode that matter to references: `deleted`, whose lock stands for the
    /// content lock, and `links`, whose lock stands for the core lock.
    struct Model {
        deleted: RwLock<bool, Shuttle>,
        links: RwLock<u32, Shuttle>,
        counts: OpenCounts<Shuttle>,
        deletions: AtomicU32,
    }

    impl Model {
        fn new(links: u32) -> Arc<Self> {
            Arc::new(Self {
                deleted: RwLock::new(rank::INODE, false),
                links: RwLock::new(rank::MAPPING, links),
                counts: OpenCounts::none(),
                deletions: AtomicU32::new(0),
            })
        }

        fn open(&self, write: bool) -> bool {
            let deleted = self.deleted.read();
            if !*deleted {
                self.counts.open(write);
            }
            !*deleted
        }

        fn use_it(&self) {
            assert!(!*self.deleted.read(), "deleted while it is open");
        }

        fn release(&self, write: bool) {
            assert!(self.counts.has(write));
            if write {
                self.counts.end_writer();
            }
            if self.counts.end() && *self.links.read() == 0 {
                self.delete_if_unused();
            }
        }

        fn unlink(&self) {
            *self.links.write() -= 1;
            self.delete_if_unused();
        }

        fn delete_if_unused(&self) {
            let mut deleted = self.deleted.write();
            if *deleted || *self.links.read() > 0 || self.counts.is_open() {
                return;
            }
            *deleted = true;
            self.deletions.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn explore(scenario: impl Fn() + Send + Sync + Copy + 'static) {
        let schedules = if blockyard_testkit::full_matrix() { 40_000 } else { 2_000 };
        shuttle::check_random(scenario, schedules / 2);
        shuttle::check_pct(scenario, schedules / 2, 3);
    }

    /// Two readers and a writer open the inode while two threads remove its names: the inode stays
    /// while it is open, and is deleted once.
    #[test]
    fn an_open_inode_stays_and_a_forgotten_one_goes_once() {
        explore(|| {
            let inode = Model::new(2);
            let mut threads = Vec::new();
            for write in [false, false, true] {
                let inode = Arc::clone(&inode);
                threads.push(thread::spawn(move || {
                    if inode.open(write) {
                        inode.use_it();
                        inode.release(write);
                    }
                }));
            }
            for _ in 0..2 {
                let inode = Arc::clone(&inode);
                threads.push(thread::spawn(move || inode.unlink()));
            }
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(*inode.deleted.read(), "nobody has deleted it");
            assert_eq!(inode.deletions.load(Ordering::Relaxed), 1);
            assert!(!inode.counts.is_open() && !inode.counts.has_writer());
        });
    }

    /// The only name of an inode that is open from the start is removed: the inode stays until the
    /// reference ends, and is deleted once.
    #[test]
    fn a_reference_from_the_start_keeps_what_has_no_name() {
        explore(|| {
            let inode = Model::new(1);
            inode.counts.open(true);
            let other = Arc::clone(&inode);
            let remover = thread::spawn(move || other.unlink());
            inode.use_it();
            inode.release(true);
            remover.join().unwrap();
            assert_eq!(inode.deletions.load(Ordering::Relaxed), 1);
        });
    }
}
