//! Short sequences of operations ("stories") that file systems got wrong. Each ends with an fsync
//! or fdatasync, and promises what must hold from then on. At the end of the workload, one file
//! gets many names.

use anyhow::Result;
use blockyard_disk::InodeNr;
use blockyard_disk::num::usize_from_u64;
use blockyard_engine::{Fallocate, RenameMode, XattrMode};

use super::super::facts::{Value, stamps};
use super::super::stage::{DIRECTORY, REGULAR, Stage};
use super::long_name;
use crate::target::engine::context;

/// Runs all stories three times. After the first time, blocks and inodes have had earlier owners.
pub(super) fn all(stage: &Stage) -> Result<()> {
    let stories: [fn(&mut Story<'_>) -> Result<()>; 17] = [
        rename_over,
        rename_over_without_fsync,
        create_write_rename,
        rewrite_in_place,
        rename_directory,
        link_and_fsync_other_name,
        unlink_one_of_two_names,
        new_tree,
        fsync_of_parent,
        truncate_down_and_write,
        truncate_up,
        beyond_the_end,
        append_and_fdatasync,
        attribute_replaced,
        symlink_and_directory,
        file_becomes_directory,
        swap,
    ];
    stage.step()?;
    for round in 0..3 {
        for (number, tell) in stories.iter().enumerate() {
            let number = u16::try_from(number).unwrap_or(0);
            let name = format!("story-{round}-{number}");
            let dir = stage.directory(&name)?;
            stage.step()?;
            let mut story = Story { stage, dir, name, id: 1 + round * 1000 + number * 20 };
            tell(&mut story)?;
            stage.step()?;
            if round < 2 {
                story.clean()?;
            }
        }
    }
    many_links(stage)
}

/// A story, with its own directory.
struct Story<'a> {
    stage: &'a Stage,
    dir: InodeNr,
    name: String,
    id: u16,
}

impl Story<'_> {
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    /// Creates a file with its own stamps.
    fn file(&mut self, name: &str, len: u64) -> Result<(InodeNr, Vec<u8>)> {
        self.id += 1;
        let ctx = super::super::stage::owner(self.id, 0);
        let file = self.stage.fs.create(&ctx, self.dir, name.as_bytes(), &REGULAR)?;
        let bytes = stamps(self.id, 0, 0, len);
        self.stage.fs.write(&ctx, file, 0, &bytes)?;
        self.stage.step()?;
        Ok((file, bytes))
    }

    fn stamps(&self, offset: u64, len: u64) -> Vec<u8> {
        stamps(self.id, 1, offset, len)
    }

    /// Makes a file durable and promises that it holds `bytes`.
    fn promise(&self, file: InodeNr, name: &str, bytes: &[u8]) -> Result<()> {
        self.stage.promise(file, &self.path(name), bytes)
    }

    fn allow(&self, name: &str, values: &[Value]) {
        self.stage.allow(&self.path(name), values);
    }

    fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        let (from, to) = ((self.dir, from.as_bytes()), (self.dir, to.as_bytes()));
        self.stage.fs.rename(&context(0), from, to, mode)?;
        self.stage.step()
    }

    fn unlink(&self, name: &str) -> Result<()> {
        self.stage.fs.unlink(&context(0), self.dir, name.as_bytes())?;
        self.stage.step()
    }

    fn fsync(&self, inode: InodeNr) -> Result<()> {
        Ok(self.stage.fs.fsync(&context(0), inode)?)
    }

    /// Removes the story's directory with all files in it, and releases the promises about them.
    fn clean(&self) -> Result<()> {
        let fs = &self.stage.fs;
        let mut left = vec![(InodeNr::ROOT, self.name.clone(), self.dir, self.name.clone(), false)];
        while let Some((parent, name, inode, path, emptied)) = left.pop() {
            self.stage.release(&path);
            if fs.attributes(inode)?.kind != blockyard_disk::inode::FileType::Directory {
                fs.unlink(&context(0), parent, name.as_bytes())?;
            } else if emptied {
                fs.rmdir(&context(0), parent, name.as_bytes())?;
            } else {
                left.push((parent, name, inode, path.clone(), true));
                fs.read_dir(inode, 0, |entry| {
                    if entry.name != b"." && entry.name != b".." {
                        let name = String::from_utf8_lossy(&entry.name).into_owned();
                        let path = format!("{path}/{name}");
                        left.push((inode, name, entry.inode, path, false));
                    }
                    true
                })?;
                continue;
            }
            self.stage.step()?;
        }
        Ok(())
    }
}

fn rename_over(story: &mut Story<'_>) -> Result<()> {
    let (old, before) = story.file("a", 3000)?;
    story.promise(old, "a", &before)?;
    let (new, after) = story.file("b", 5000)?;
    story.promise(new, "b", &after)?;
    story.allow("a", &[Value::holds(&before), Value::holds(&after)]);
    story.allow("b", &[Value::holds(&after), Value::Absent]);
    story.rename("b", "a", RenameMode::Replace)?;
    story.fsync(story.dir)?;
    story.allow("a", &[Value::holds(&after)]);
    story.allow("b", &[Value::Absent]);
    Ok(())
}

/// The new file is never synced. After a cut, the name leads to the old or to the new file, and the
/// new file is complete. Once anything later is durable, the name leads to the new file.
fn rename_over_without_fsync(story: &mut Story<'_>) -> Result<()> {
    let (old, before) = story.file("a", 3000)?;
    story.promise(old, "a", &before)?;
    let (_, after) = story.file("b", 5000)?;
    story.allow("a", &[Value::holds(&before), Value::holds(&after)]);
    story.rename("b", "a", RenameMode::Replace)?;
    let (other, bytes) = story.file("c", 800)?;
    story.promise(other, "c", &bytes)?;
    story.allow("a", &[Value::holds(&after)]);
    Ok(())
}

fn create_write_rename(story: &mut Story<'_>) -> Result<()> {
    let (new, bytes) = story.file("a.tmp", 9000)?;
    story.promise(new, "a.tmp", &bytes)?;
    story.allow("a.tmp", &[Value::holds(&bytes), Value::Absent]);
    story.allow("a", &[Value::holds(&bytes), Value::Absent]);
    story.rename("a.tmp", "a", RenameMode::NoReplace)?;
    story.fsync(new)?;
    story.allow("a.tmp", &[Value::Absent]);
    story.allow("a", &[Value::holds(&bytes)]);
    Ok(())
}

/// The file is truncated to zero, rewritten and closed, but never synced. Once anything later is
/// durable, so is the new content.
fn rewrite_in_place(story: &mut Story<'_>) -> Result<()> {
    let (file, before) = story.file("a", 3000)?;
    story.promise(file, "a", &before)?;
    story.stage.release(&story.path("a"));
    let fs = &story.stage.fs;
    fs.open_inode(file, true)?;
    fs.truncate(&context(0), file, 0)?;
    let after = story.stamps(0, 4000);
    fs.write(&context(0), file, 0, &after)?;
    fs.release_inode(&context(0), file, true)?;
    let (other, bytes) = story.file("c", 800)?;
    story.promise(other, "c", &bytes)?;
    story.allow("a", &[Value::holds(&after)]);
    Ok(())
}

fn rename_directory(story: &mut Story<'_>) -> Result<()> {
    let ctx = context(0);
    let fs = &story.stage.fs;
    let dir = fs.create(&ctx, story.dir, b"one", &DIRECTORY)?;
    story.stage.step()?;
    let file = fs.create(&ctx, dir, b"file", &REGULAR)?;
    story.stage.step()?;
    story.fsync(file)?;
    let two = fs.create(&ctx, story.dir, b"two", &DIRECTORY)?;
    story.stage.step()?;
    fs.rename(&ctx, (story.dir, b"one"), (two, b"moved"), RenameMode::Replace)?;
    story.stage.step()?;
    story.fsync(dir)?;
    story.allow("one/file", &[Value::Absent]);
    story.allow("two/moved/file", &[Value::Present]);
    Ok(())
}

fn link_and_fsync_other_name(story: &mut Story<'_>) -> Result<()> {
    let (file, bytes) = story.file("a", 2000)?;
    story.promise(file, "a", &bytes)?;
    story.stage.fs.link(&context(0), file, story.dir, b"b")?;
    story.stage.step()?;
    story.promise(file, "b", &bytes)
}

fn unlink_one_of_two_names(story: &mut Story<'_>) -> Result<()> {
    link_and_fsync_other_name(story)?;
    let file = story.stage.fs.lookup(story.dir, b"a")?;
    story.allow("a", &[Value::Present, Value::Absent]);
    story.unlink("a")?;
    story.fsync(file)?;
    story.allow("a", &[Value::Absent]);
    Ok(())
}

fn new_tree(story: &mut Story<'_>) -> Result<()> {
    let mut dir = story.dir;
    for name in ["x", "y", "z"] {
        dir = story.stage.fs.create(&context(0), dir, name.as_bytes(), &DIRECTORY)?;
        story.stage.step()?;
    }
    let file = story.stage.fs.create(&context(0), dir, b"file", &REGULAR)?;
    story.stage.step()?;
    story.fsync(file)?;
    story.allow("x/y/z/file", &[Value::Present]);
    Ok(())
}

/// An fsync of the directory makes names durable, but not the data of the file.
fn fsync_of_parent(story: &mut Story<'_>) -> Result<()> {
    story.file("a", 4000)?;
    story.fsync(story.dir)?;
    story.allow("a", &[Value::Present]);
    Ok(())
}

fn truncate_down_and_write(story: &mut Story<'_>) -> Result<()> {
    let (file, mut bytes) = story.file("a", 12_000)?;
    story.promise(file, "a", &bytes)?;
    story.stage.release(&story.path("a"));
    story.stage.fs.truncate(&context(0), file, 3000)?;
    let new = story.stamps(4000, 2000);
    story.stage.fs.write(&context(0), file, 4000, &new)?;
    bytes.truncate(3000);
    bytes.resize(4000, 0);
    bytes.extend(new);
    story.promise(file, "a", &bytes)
}

fn truncate_up(story: &mut Story<'_>) -> Result<()> {
    let (file, mut bytes) = story.file("a", 1600)?;
    story.promise(file, "a", &bytes)?;
    story.stage.release(&story.path("a"));
    story.stage.fs.truncate(&context(0), file, 20_000)?;
    bytes.resize(20_000, 0);
    story.promise(file, "a", &bytes)
}

/// Allocates space beyond the end, then punches a hole and zeroes a range in the middle. Then
/// collapses one range and inserts another.
fn beyond_the_end(story: &mut Story<'_>) -> Result<()> {
    let fs = &story.stage.fs;
    let block = story.stage.block();
    let (file, mut bytes) = story.file("a", 30 * block - 720)?;
    let fs_change = |how, at, len| fs.fallocate(&context(0), file, how, at, len);
    let range = |at: u64, len: u64| usize_from_u64(at)..usize_from_u64(at + len);
    fs_change(Fallocate::AllocateKeepSize, 40 * block - 960, 49 * block)?;
    fs_change(Fallocate::PunchHole, 4 * block, 8 * block)?;
    bytes[range(4 * block, 8 * block)].fill(0);
    fs_change(Fallocate::ZeroRangeKeepSize, 16 * block, 4 * block - 96)?;
    bytes[range(16 * block, 4 * block - 96)].fill(0);
    story.promise(file, "a", &bytes)?;
    story.stage.release(&story.path("a"));
    fs_change(Fallocate::CollapseRange, block, 2 * block)?;
    bytes.drain(range(block, 2 * block));
    fs_change(Fallocate::InsertRange, 8 * block, 4 * block)?;
    bytes.splice(range(8 * block, 0), vec![0; usize_from_u64(4 * block)]);
    story.promise(file, "a", &bytes)
}

fn append_and_fdatasync(story: &mut Story<'_>) -> Result<()> {
    let (file, mut bytes) = story.file("a", 1000)?;
    story.promise(file, "a", &bytes)?;
    let more = story.stamps(1000, 5000);
    let least = bytes.len();
    bytes.extend(&more);
    story.stage.allow_beginning(&story.path("a"), &bytes, least);
    story.stage.fs.append(&context(0), file, &more)?;
    story.stage.fs.fdatasync(&context(0), file)?;
    story.allow("a", &[Value::holds(&bytes)]);
    Ok(())
}

fn attribute_replaced(story: &mut Story<'_>) -> Result<()> {
    let (file, bytes) = story.file("a", 800)?;
    let set = |name: &[u8], value: &[u8]| {
        story.stage.fs.set_xattr(&context(0), file, name, value, XattrMode::Set)?;
        story.stage.step()
    };
    set(b"user.one", &[1; 30])?;
    set(b"user.two", &[2; 700])?;
    set(b"user.one", &[3; 60])?;
    story.stage.fs.remove_xattr(&context(0), file, b"user.two")?;
    story.stage.step()?;
    story.promise(file, "a", &bytes)?;
    story.stage.note(super::super::facts::Fact::Durable);
    Ok(())
}

fn symlink_and_directory(story: &mut Story<'_>) -> Result<()> {
    for (name, len) in [("short", 10), ("long", 300)] {
        story.stage.fs.symlink(&context(0), story.dir, name.as_bytes(), &vec![b't'; len])?;
        story.stage.step()?;
    }
    story.fsync(story.dir)?;
    story.stage.note(super::super::facts::Fact::Durable);
    Ok(())
}

fn file_becomes_directory(story: &mut Story<'_>) -> Result<()> {
    let (file, bytes) = story.file("a", 3000)?;
    story.promise(file, "a", &bytes)?;
    story.stage.release(&story.path("a"));
    story.unlink("a")?;
    let dir = story.stage.fs.create(&context(0), story.dir, b"a", &DIRECTORY)?;
    story.stage.step()?;
    story.stage.fs.create(&context(0), dir, b"inside", &REGULAR)?;
    story.stage.step()?;
    story.fsync(dir)?;
    story.allow("a/inside", &[Value::Present]);
    Ok(())
}

fn swap(story: &mut Story<'_>) -> Result<()> {
    let (one, first) = story.file("a", 2000)?;
    let (two, second) = story.file("b", 4000)?;
    story.promise(one, "a", &first)?;
    story.promise(two, "b", &second)?;
    let either = [Value::holds(&first), Value::holds(&second)];
    story.allow("a", &either);
    story.allow("b", &either);
    story.rename("a", "b", RenameMode::Exchange)?;
    story.fsync(one)?;
    story.allow("a", &either[1..]);
    story.allow("b", &either[..1]);
    Ok(())
}

/// A file gets many names. All but one are removed and added again, twice, so a directory of many
/// entries is nearly emptied and refilled.
fn many_links(stage: &Stage) -> Result<()> {
    let ctx = context(0);
    let (file, bytes) = stage.file(9000, "linked", 0, 1600)?;
    stage.step()?;
    let dir = stage.directory("links")?;
    stage.step()?;
    for n in 0..60 {
        stage.fs.link(&ctx, file, dir, long_name(n).as_bytes())?;
        stage.step()?;
    }
    stage.promise(file, "linked", &bytes)?;
    stage.allow(&format!("links/{}", long_name(59)), &[Value::holds(&bytes)]);
    for round in 0..2 {
        for n in 0..59 {
            stage.fs.unlink(&ctx, dir, long_name(n).as_bytes())?;
            stage.step()?;
        }
        stage.sync()?;
        stage.allow(&format!("links/{}", long_name(3)), &[Value::Absent]);
        stage.release(&format!("links/{}", long_name(3)));
        for n in 0..59 {
            stage.fs.link(&ctx, file, dir, long_name(n).as_bytes())?;
            stage.step()?;
        }
        if round == 0 {
            stage.sync()?;
        }
    }
    Ok(())
}
