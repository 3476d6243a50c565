//! Several threads at once: promises to one thread hold whatever the others do.

use anyhow::Result;
use blockyard_disk::InodeNr;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_engine::Fallocate;
use rand::Rng;

use super::super::facts::{Value, stamps};
use super::super::stage::{DIRECTORY, REGULAR, Stage, owner};
use crate::target::engine::context;

/// Runs `work` in `count` threads.
pub(super) fn together(count: u16, work: impl Fn(u16) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

/// The lab's workload `fallocate2` with eight workers: each appends by fallocate, truncates and
/// repeats. Here there is also an occasional fsync.
pub(super) fn fallocate2(stage: &Stage) -> Result<()> {
    const STEPS: u64 = 12;
    let step_bytes = (8 * stage.growth()) << 10;
    together(8, |number| {
        let mut random = stage.random(100 + u64::from(number));
        let ctx = owner(number + 1, u32::from(number));
        let path = format!("file-{number}");
        let file = stage.fs.create(&ctx, InodeNr::ROOT, path.as_bytes(), &REGULAR)?;
        for _ in 0..10 {
            for step in 0..STEPS {
                stage.release(&path);
                stage.fs.fallocate(&ctx, file, Fallocate::Allocate, step * step_bytes, step_bytes)?;
                if random.random_range(0..8) == 0 {
                    stage.promise(file, &path, &vec![0; usize_from_u64((step + 1) * step_bytes)])?;
                }
            }
            stage.release(&path);
            stage.fs.truncate(&ctx, file, 0)?;
            if random.random_range(0..3) == 0 {
                stage.promise(file, &path, &[])?;
            }
        }
        Ok(())
    })
}

/// Each thread works in its own directory, and also creates and unlinks files in the root
/// directory.
pub(super) fn race(stage: &Stage) -> Result<()> {
    together(4, |number| {
        let ctx = owner(number + 1, u32::from(number));
        let fs = &stage.fs;
        let dir_name = format!("thread-{number}");
        let dir = fs.create(&context(u32::from(number)), InodeNr::ROOT, dir_name.as_bytes(), &DIRECTORY)?;
        let steady = fs.create(&ctx, dir, b"steady", &REGULAR)?;
        let path = format!("{dir_name}/steady");
        let (mut bytes, growth) = (Vec::new(), stage.growth());
        for round in 0..14u16 {
            let name = format!("file-{number}-{round}");
            let file = fs.create(&ctx, InodeNr::ROOT, name.as_bytes(), &REGULAR)?;
            fs.fallocate(&ctx, file, Fallocate::Allocate, 0, 40_000 * growth)?;
            fs.truncate(&ctx, file, 1000)?;
            for n in 0..6 {
                fs.create(&ctx, dir, format!("{round}-{n}").as_bytes(), &REGULAR)?;
            }
            let least = bytes.len();
            bytes.extend(stamps(number + 1, round, u64_from_usize(least), 3000 * growth));
            if round == 0 {
                stage.release(&path);
            } else {
                stage.allow_beginning(&path, &bytes, least);
            }
            fs.write(&ctx, steady, u64_from_usize(least), &bytes[least..])?;
            fs.fsync(&ctx, steady)?;
            stage.allow(&path, &[Value::holds(&bytes)]);
            fs.unlink(&ctx, InodeNr::ROOT, name.as_bytes())?;
            for n in 0..5 {
                fs.unlink(&ctx, dir, format!("{round}-{n}").as_bytes())?;
            }
        }
        Ok(())
    })
}
