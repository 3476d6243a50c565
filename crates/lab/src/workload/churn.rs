//! `churn`: what a mail spool does. Over and over, each worker creates a file, appends to it, makes
//! it durable and closes it. If the worker then has more than 64 files, it deletes one at random.
//!
//! Each create, each append and each delete is one operation. An fsync and the close after it are
//! together one operation.

use anyhow::Result;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{FILES_KEPT, Step, Worker, new_file};
use crate::target::{Cpu, Target};

/// The next operation of a worker.
enum Next<F> {
    Create,
    /// Appends a block to the file. If the file already has `blocks` blocks, makes it durable and
    /// closes it instead.
    Append {
        name: String,
        file: F,
        written: u64,
        blocks: u64,
    },
    Delete,
}

pub(super) struct Churn<F> {
    cpu: Cpu,
    index: u32,
    /// The content of an append: zeroes, which a sparse memory device does not store.
    data: Vec<u8>,
    /// The most blocks that a file may have. Here a block is one append.
    most: u64,
    next: Next<F>,
    /// Files created so far.
    created: u64,
    kept: Vec<String>,
    random: ChaCha8Rng,
}

impl<F> Churn<F> {
    pub(super) fn new((cpu, index): (Cpu, u32), size: u64, step: u64) -> Self {
        Self {
            cpu,
            index,
            data: vec![0; usize_from_u64(step)],
            most: (size / step).max(1),
            next: Next::Create,
            created: 0,
            kept: Vec::new(),
            random: ChaCha8Rng::seed_from_u64(index.into()),
        }
    }

    /// Number of blocks of the next file. Each range from one power of two to the next is equally
    /// likely, so small files are more frequent than large ones.
    fn blocks(&mut self) -> u64 {
        let low = 1u64 << self.random.random_range(0..=self.most.ilog2());
        self.random.random_range(low..2 * low).min(self.most)
    }
}

/// The expected number of blocks of `files` files together, if each file has at most `most` blocks.
/// Here a block is one append.
pub(crate) fn blocks_of_files(files: u64, most: u64) -> u64 {
    assert!(most > 0, "a file has at least one block");
    let of_level = |level: u32| {
        let low = 1u64 << level;
        // Numbers of blocks below `end` are drawn as they are. Numbers from `end` on are cut to
        // `most`.
        let end = most.min(2 * low);
        let all = (low..end).sum::<u64>() + (2 * low - end) * most;
        files * all / low
    };
    let levels = most.ilog2() + 1;
    (0..levels).map(of_level).sum::<u64>() / u64::from(levels)
}

impl<T: Target> Worker<T> for Churn<T::File> {
    fn step(&mut self, target: &T) -> Result<Step> {
        let mut bytes = 0;
        self.next = match std::mem::replace(&mut self.next, Next::Create) {
            Next::Create => {
                let name = format!("churn.{}.{}", self.index, self.created);
                let (name, file) = new_file(target, self.cpu, &name)?;
                self.created += 1;
                Next::Append { name, file, written: 0, blocks: self.blocks() }
            }
            Next::Append { name, file, written, blocks } if written < blocks => {
                bytes = u64_from_usize(self.data.len());
                target.write(self.cpu, &file, written * bytes, &self.data)?;
                Next::Append { name, file, written: written + 1, blocks }
            }
            Next::Append { name, file, .. } => {
                target.fsync(self.cpu, &file)?;
                target.close(self.cpu, file)?;
                self.kept.push(name);
                if u64_from_usize(self.kept.len()) > FILES_KEPT { Next::Delete } else { Next::Create }
            }
            Next::Delete => {
                let at = self.random.random_range(0..self.kept.len());
                target.unlink(self.cpu, &self.kept.swap_remove(at))?;
                Next::Create
            }
        };
        Ok(Step::Done { bytes })
    }

    fn fill(&mut self, target: &T) -> Result<Step> {
        match self.next {
            Next::Append { .. } | Next::Delete => self.step(target),
            Next::Create => Ok(Step::Finished),
        }
    }

    fn sync(&mut self, target: &T) -> Result<()> {
        match &self.next {
            Next::Append { file, .. } => target.fsync(self.cpu, file),
            Next::Create | Next::Delete => Ok(()),
        }
    }

    fn close(self: Box<Self>, target: &T) -> Result<()> {
        match self.next {
            Next::Append { file, .. } => target.close(self.cpu, file),
            Next::Create | Next::Delete => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn files_have_as_many_blocks_as_are_drawn() {
        assert_eq!([1, 2, 13].map(|most| blocks_of_files(192, most)), [192, 288, 966]);
        for most in [1, 2, 13, 100, 256] {
            let mut worker = Churn::<()>::new((0, 0), most, 1);
            let drawn = (0..10_000).map(|_| worker.blocks()).sum::<u64>();
            let expected = blocks_of_files(10_000, most);
            assert!(drawn.abs_diff(expected) <= expected / 20, "{most}: {drawn}, not {expected}");
        }
    }

    /// The most blocks that a worker's files have at a time, with the sizes that its steps draw.
    fn most_kept(index: u32, most: u64) -> u64 {
        let (mut worker, mut kept) = (Churn::<()>::new((0, index), most, 1), Vec::new());
        let peaks = (0..3 * FILES_KEPT).map(|_| {
            kept.push(worker.blocks());
            let peak = kept.iter().sum::<u64>();
            if u64_from_usize(kept.len()) > FILES_KEPT {
                kept.swap_remove(worker.random.random_range(0..kept.len()));
            }
            peak
        });
        peaks.max().unwrap()
    }

    #[test]
    fn workers_keep_no_more_than_their_space() {
        for most in [1, 2, 13, 256] {
            let space = Workload::Churn { size: most, step: 1 }.space_of_worker();
            for index in 0..48 {
                let kept = most_kept(index, most);
                assert!(kept <= space && space <= 2 * kept, "{most}: {kept} of {space}");
            }
        }
    }
}
