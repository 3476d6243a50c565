//! One log for each rule of recovery, and the exact result of its replay.

#![allow(clippy::unwrap_used, clippy::as_conversions)]

#[path = "support/image.rs"]
mod support;

use blockyard_device::{BlockDevice, CrashPlan, OverlayDevice, RecorderDevice};
use blockyard_disk::group_desc::RawGroupDesc;
use blockyard_disk::jbd2::{JournalFeatures, JournalIncompat};
use blockyard_disk::{BlockCount, BlockNr, CorruptionKind, Incompat, TxnId};
use blockyard_recovery::{
    Error, JournalState, OnDamage, Options, Report, Unflagged, inspect, replay_into_overlay, replay_to_device,
};
use support::{
    BLOCK, BLOCKS, Image, JOURNAL, JOURNAL_BLOCKS, NONE, byte, content, has_error, incompat,
    read_journal_superblock, read_superblock, superblock, v1, v3,
};
use zerocopy::IntoBytes;

const GOOD: Options = Options { on_damage: OnDamage::ReplayGood, unflagged: Unflagged::Refuse };

/// Replays, and checks what holds after every replay.
fn replay(image: &Image, options: &Options) -> Report {
    let report = replay_to_device(&image.device, options).unwrap();
    let journal = read_journal_superblock(&image.device);
    assert_eq!((journal.s_start.get(), journal.s_errno.get()), (0, 0));
    let fast = incompat(JournalIncompat::FAST_COMMIT).incompat;
    let area = if image.journal.features().incompat.contains(fast) { 256 } else { 0 };
    // If there was damage, recovery skips as many transaction ids as the ring has blocks, because
    // transactions that were not replayed may still be in the ring, with any of these ids.
    let skipped = if report.damage.is_empty() { 1 } else { JOURNAL_BLOCKS - 1 - area };
    assert_eq!(journal.s_sequence.get(), report.end.unwrap().raw().wrapping_add(skipped));
    let sb = read_superblock(&image.device);
    assert!(!sb.incompat().contains(Incompat::RECOVER));
    assert_eq!(has_error(&sb), !report.damage.is_empty());
    assert_eq!(inspect(&image.device).unwrap().state, JournalState::Clean);
    report
}

/// Checks that a replay with default options refuses the log and writes nothing. Returns the kinds
/// of damage that it reports.
fn refused(image: &Image) -> Vec<CorruptionKind> {
    let before = content(&image.device);
    let result = replay_to_device(&image.device, &Options::default());
    assert!(content(&image.device) == before, "written although refused");
    match result {
        Err(Error::Damaged(damage)) => damage.iter().map(|damage| damage.kind).collect(),
        other => panic!("{other:?}"),
    }
}

fn all_formats() -> Vec<JournalFeatures> {
    let (wide, v2) = (JournalIncompat::BIT64, JournalIncompat::CSUM_V2);
    vec![
        NONE,
        v1(),
        incompat(wide),
        incompat(v2),
        incompat(v2 | wide),
        incompat(JournalIncompat::CSUM_V3),
        v3(),
    ]
}

#[test]
fn committed_blocks_come_home_in_every_format() {
    for features in all_formats() {
        let mut image = Image::new(features, 1, 7);
        image.transaction(&[(2000, 1), (2001, 2)]);
        image.transaction(&[(2001, 3)]);
        let report = replay(&image, &Options::default());
        assert_eq!((report.transactions, report.logged, report.written), (2, 3, 2), "{features}");
        assert_eq!(report.end.unwrap().raw(), 9);
        assert_eq!([byte(&image.device, 2000), byte(&image.device, 2001)], [1, 3]);
    }
}

#[test]
fn a_transaction_without_commit_does_not_count() {
    for features in all_formats() {
        let mut image = Image::new(features, 1, 7);
        image.transaction(&[(2000, 1)]);
        image.blocks(&[(2000, vec![9; BLOCK])], !0);
        let report = replay(&image, &Options::default());
        assert_eq!((report.transactions, report.end.unwrap().raw()), (1, 8));
        assert_eq!(byte(&image.device, 2000), 1);
    }
}

#[test]
fn the_log_wraps_and_so_do_transaction_ids() {
    for features in all_formats() {
        let mut image = Image::new(features, JOURNAL_BLOCKS - 6, 0xFFFF_FFFE);
        for n in 0..5u8 {
            image.transaction(&[(2000, n), (2001 + u64::from(n), n + 1)]);
        }
        assert!(image.at < 20, "the log has wrapped");
        let report = replay(&image, &Options::default());
        assert_eq!((report.transactions, report.end.unwrap().raw()), (5, 3));
        assert_eq!(byte(&image.device, 2000), 4);
        assert!((0..5).all(|n| byte(&image.device, 2001 + n) == n as u8 + 1));
    }
}

#[test]
fn revokes_reach_their_own_transaction_and_earlier_ones() {
    for features in [NONE, v3(), incompat(JournalIncompat::BIT64)] {
        // Revokes count without their feature bit, too.
        let mut image = Image::new(features, 1, 0xFFFF_FFFF);
        image.transaction(&[(2000, 1), (2001, 1), (2002, 1)]);
        image.revoke(&[2000, 2001]);
        image.transaction(&[(2001, 2)]);
        image.transaction(&[(2000, 3)]);
        let report = replay(&image, &Options::default());
        assert_eq!((report.revokes, report.revoked, report.written), (2, 3, 2));
        let seen = [2000, 2001, 2002].map(|block| byte(&image.device, block));
        assert_eq!(seen, [3, 0, 1]);
    }
}

#[test]
fn a_revoke_without_commit_revokes_nothing() {
    let mut image = Image::new(v3(), 1, 7);
    image.transaction(&[(2000, 1)]);
    image.revoke(&[2000]);
    let report = replay(&image, &Options::default());
    assert_eq!((report.revokes, byte(&image.device, 2000)), (0, 1));
}

#[test]
fn the_magic_comes_back() {
    for features in all_formats() {
        let mut image = Image::new(features, 1, 7);
        let mut block = vec![0x77; BLOCK];
        block[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
        let (_, crc) = image.blocks(&[(2000, block.clone()), (2001, vec![1; BLOCK])], !0);
        image.commit(crc);
        replay(&image, &Options::default());
        let mut seen = vec![0; BLOCK];
        image.device.read_at(2000 * BLOCK as u64, &mut seen).unwrap();
        assert!(seen == block, "{features}");
    }
}

#[test]
fn a_bad_copy_is_not_written_and_an_older_good_one_is() {
    for features in [v3(), incompat(JournalIncompat::CSUM_V2)] {
        let mut image = Image::new(features, 1, 7);
        image.transaction(&[(2000, 1)]);
        let (descriptor, _) = image.transaction(&[(2000, 2), (2001, 2)]);
        image.damage(descriptor + 1, 500);
        assert_eq!(refused(&image), [CorruptionKind::JournalDataChecksum]);
        let report = replay(&image, &GOOD);
        assert_eq!((report.damage[0].tid.raw(), report.damage[0].log_block), (8, descriptor + 1));
        assert_eq!([byte(&image.device, 2000), byte(&image.device, 2001)], [1, 2]);
    }
}

#[test]
fn a_bad_commit_ends_the_log_and_is_told() {
    for features in [v1(), v3(), incompat(JournalIncompat::CSUM_V2)] {
        let mut image = Image::new(features, 1, 7);
        image.transaction(&[(2000, 1)]);
        let (_, commit) = image.transaction(&[(2000, 2)]);
        image.damage(commit, 0x12);
        image.transaction(&[(2000, 3)]);
        assert_eq!(refused(&image), [CorruptionKind::JournalCommitChecksum]);
        let report = replay(&image, &GOOD);
        assert_eq!((report.transactions, report.end.unwrap().raw()), (1, 8));
        assert_eq!(byte(&image.device, 2000), 1);
    }
}

#[test]
fn v1_covers_the_data() {
    let mut image = Image::new(v1(), 1, 7);
    let (descriptor, _) = image.transaction(&[(2000, 2)]);
    image.damage(descriptor + 1, 0);
    assert_eq!(refused(&image), [CorruptionKind::JournalCommitChecksum]);
}

#[test]
fn a_half_written_commit_block_is_good() {
    let mut image = Image::new(v3(), 1, 7);
    let (_, commit) = image.transaction(&[(2000, 2)]);
    image.damage(commit, 512);
    assert_eq!(replay(&image, &Options::default()).transactions, 1);
}

#[test]
fn a_damaged_descriptor_with_a_commit_is_damage() {
    let mut image = Image::new(v3(), 1, 7);
    image.transaction(&[(2000, 1)]);
    let (descriptor, _) = image.transaction(&[(2000, 2)]);
    image.damage(descriptor, 900);
    assert_eq!(refused(&image), [CorruptionKind::JournalTransactionChecksum]);
    assert_eq!(replay(&image, &GOOD).transactions, 1);
    assert_eq!(byte(&image.device, 2000), 1);
}

#[test]
fn leftovers_of_an_older_life_are_no_damage() {
    // A damaged descriptor or commit block, as in the tests above. But the commit time is before
    // that of the preceding transaction.
    for offset in [900usize, 0x12] {
        let mut image = Image::new(v3(), 1, 7);
        image.transaction(&[(2000, 1)]);
        image.time = 10;
        let (descriptor, commit) = image.transaction(&[(2000, 2)]);
        image.damage(if offset == 900 { descriptor } else { commit }, offset);
        let report = replay(&image, &Options::default());
        assert_eq!((report.transactions, byte(&image.device, 2000)), (1, 1));
    }
}

#[test]
fn an_asynchronous_commit_may_be_bad_only_at_the_end() {
    let features = incompat(JournalIncompat::CSUM_V3 | JournalIncompat::ASYNC_COMMIT);
    let mut image = Image::new(features, 1, 7);
    image.transaction(&[(2000, 1)]);
    let (_, commit) = image.transaction(&[(2000, 2)]);
    image.damage(commit, 0x12);
    let last = image.at;
    assert_eq!(replay(&image, &Options::default()).end.unwrap().raw(), 8);

    let mut image = Image::new(features, 1, 7);
    image.transaction(&[(2000, 1)]);
    image.transaction(&[(2000, 2)]);
    image.damage(commit, 0x12);
    assert_eq!(image.at, last);
    image.transaction(&[(2000, 3)]);
    assert_eq!(refused(&image), [CorruptionKind::JournalCommitChecksum]);
}

#[test]
fn impossible_targets_are_damage() {
    for target in [BLOCKS, JOURNAL + 3, u64::from(u32::MAX)] {
        let mut image = Image::new(v3(), 1, 7);
        image.transaction(&[(target, 1), (2000, 5)]);
        assert_eq!(refused(&image), [CorruptionKind::JournalTarget], "{target}");
        let report = replay(&image, &GOOD);
        assert_eq!((report.written, byte(&image.device, 2000)), (1, 5));
    }
}

#[test]
fn a_log_that_bites_its_tail_ends() {
    // The ring has 1023 blocks. One transaction fills the ring with descriptor blocks and the
    // copies that they describe. So the walk over the log comes back to where it began.
    let mut image = Image::new(NONE, 1, 7);
    let mut left = 1023usize;
    while left > 0 {
        let count = (left - 1).clamp(1, 60);
        let blocks: Vec<_> = (0..count as u64).map(|n| (2000 + n, vec![1; BLOCK])).collect();
        image.blocks(&blocks, !0);
        left = left.saturating_sub(count + 1);
    }
    let report = replay(&image, &Options::default());
    assert_eq!((report.transactions, report.end.unwrap().raw()), (0, 7));
}

#[test]
fn a_logged_superblock_is_verified_first_and_keeps_the_errors() {
    let mut sb = superblock();
    sb.s_error_count = 3.into();
    sb.s_first_error_line = 99.into();
    sb.s_state = 3.into();
    let mut logged = superblock();
    logged.s_mnt_count = 55.into();
    let mut image = Image::new(v3(), 1, 7);
    image.write_superblock(&sb);
    let (_, crc) = image.blocks(&[(1, logged.as_bytes().to_vec())], !0);
    image.commit(crc);
    replay_to_device(&image.device, &Options::default()).unwrap();
    let after = read_superblock(&image.device);
    assert_eq!(after.s_mnt_count.get(), 55);
    assert_eq!((after.s_error_count.get(), after.s_first_error_line.get(), has_error(&after)), (3, 99, true));

    // A logged superblock with features that are not supported.
    logged.set_incompat(logged.incompat() | Incompat::COMPRESSION);
    let mut image = Image::new(v3(), 1, 7);
    let (_, crc) = image.blocks(&[(1, logged.as_bytes().to_vec()), (2000, vec![1; BLOCK])], !0);
    image.commit(crc);
    let before = content(&image.device);
    let result = replay_to_device(&image.device, &GOOD);
    assert!(matches!(result, Err(Error::LoggedSuperblock(_))), "{result:?}");
    assert!(content(&image.device) == before);
}

/// A regression test: one corrupt copy of the superblock made recovery refuse the whole log, and
/// the checker then discarded its good blocks, too.
#[test]
fn a_corrupt_superblock_in_the_log_is_the_only_copy_that_is_dropped() {
    let mut logged = superblock();
    logged.s_mnt_count = 55.into();
    let mut corrupt = logged;
    corrupt.s_magic = 0.into();
    let mut image = Image::new(v3(), 1, 7);
    for copy in [logged, corrupt] {
        let (_, crc) = image.blocks(&[(1, copy.as_bytes().to_vec())], !0);
        image.commit(crc);
    }
    image.transaction(&[(2000, 1)]);
    assert_eq!(refused(&image), [CorruptionKind::SuperblockMagic]);
    let report = replay(&image, &GOOD);
    assert_eq!((report.written, byte(&image.device, 2000)), (2, 1));
    assert_eq!(read_superblock(&image.device).s_mnt_count.get(), 55);
}

/// A new transaction may end in the ring just where an abandoned one begins. A regression test: if
/// the abandoned one had the next transaction id, it was replayed after the next crash.
#[test]
fn abandoned_transactions_are_not_replayed_after_the_next_crash() {
    let abandoned = |clear: Option<Unflagged>| {
        let mut image = Image::new(v3(), 1, 7);
        let (_, commit) = image.transaction(&[(2000, 1)]);
        image.transaction(&[(2001, 2)]);
        image.transaction(&[(2002, 3)]);
        match clear {
            None => image.damage(commit, 0x12),
            Some(_) => {
                let mut sb = superblock();
                sb.set_incompat(sb.incompat().difference(Incompat::RECOVER));
                image.write_superblock(&sb);
            }
        }
        image
    };
    for unflagged in [None, Some(Unflagged::Discard)] {
        let mut image = abandoned(unflagged);
        let unflagged = unflagged.unwrap_or_default();
        replay_to_device(&image.device, &Options { unflagged, ..GOOD }).unwrap();
        // The next mount writes one transaction, as long as the first two, and crashes.
        image.journal = read_journal_superblock(&image.device);
        image.tid = TxnId::new(image.journal.s_sequence.get());
        (image.at, image.time) = (1, 900);
        image.journal.s_start = 1.into();
        image.write_journal_superblock();
        image.write_superblock(&superblock());
        image.transaction(&[(2000, 4), (2003, 4), (2004, 4), (2005, 4)]);
        let report = replay_to_device(&image.device, &Options::default()).unwrap();
        assert_eq!((report.transactions, byte(&image.device, 2002)), (1, 0), "{unflagged:?}");
    }
}

#[test]
fn a_file_system_that_shrank_in_the_superblock_keeps_its_bounds() {
    let mut image = Image::new(v3(), 1, 7);
    let mut sb = superblock();
    sb.set_blocks_count(BlockCount::new(4000));
    image.write_superblock(&sb);
    // The superblock in the log makes the file system 5000 blocks long. So block 4999 is a valid
    // target, and block 5000 is not.
    sb.set_blocks_count(BlockCount::new(5000));
    let (_, crc) =
        image.blocks(&[(1, sb.as_bytes().to_vec()), (4999, vec![1; BLOCK]), (5000, vec![2; BLOCK])], !0);
    image.commit(crc);
    let report = replay(&image, &GOOD);
    assert_eq!(report.damage.len(), 1);
    assert_eq!([byte(&image.device, 4999), byte(&image.device, 5000)], [1, 0]);
}

#[test]
fn the_four_combinations_of_flag_and_log() {
    let mut clear = superblock();
    clear.set_incompat(Incompat::EXTENTS | Incompat::FILETYPE);
    let state = |image: &Image| inspect(&image.device).unwrap().state;

    let image = Image::new(v3(), 0, 7);
    assert_eq!(state(&image), JournalState::FlagOnly);
    replay_to_device(&image.device, &Options::default()).unwrap();
    assert_eq!(state(&image), JournalState::Clean);
    assert_eq!(read_journal_superblock(&image.device).s_sequence.get(), 7);
    let before = content(&image.device);
    replay_to_device(&image.device, &Options::default()).unwrap();
    assert!(content(&image.device) == before, "a clean file system is not touched");

    let unflagged = || {
        let mut image = Image::new(v3(), 1, 7);
        image.transaction(&[(2000, 1)]);
        image.write_superblock(&clear);
        image
    };
    let image = unflagged();
    assert_eq!(state(&image), JournalState::Unflagged);
    assert!(matches!(replay_to_device(&image.device, &Options::default()), Err(Error::Unflagged)));
    for (choice, expected) in [(Unflagged::Replay, 1), (Unflagged::Discard, 0)] {
        let image = unflagged();
        let options = Options { unflagged: choice, ..Options::default() };
        replay_to_device(&image.device, &options).unwrap();
        assert_eq!((byte(&image.device, 2000), state(&image)), (expected, JournalState::Clean));
    }
}

#[test]
fn an_error_code_in_the_journal_becomes_the_error_state() {
    let mut image = Image::new(v3(), 1, 7);
    image.transaction(&[(2000, 1)]);
    image.journal.s_errno = 5.into();
    image.write_journal_superblock();
    assert_eq!(inspect(&image.device).unwrap().errno, 5);
    replay_to_device(&image.device, &Options::default()).unwrap();
    assert!(has_error(&read_superblock(&image.device)));
    assert_eq!(read_journal_superblock(&image.device).s_errno.get(), 0);
}

#[test]
fn external_journals_and_fast_commits_are_refused_by_name() {
    let image = Image::new(v3(), 1, 7);
    let mut sb = superblock();
    sb.s_journal_inum = 0.into();
    sb.s_journal_uuid = [0xAB; 16];
    image.write_superblock(&sb);
    let error = inspect(&image.device).unwrap_err().to_string();
    assert!(error.contains("external") && error.contains("abababab-abab"), "{error}");

    let mut image = Image::new(incompat(JournalIncompat::FAST_COMMIT | JournalIncompat::CSUM_V3), 1, 7);
    image.transaction(&[(2000, 1)]);
    image.at = JOURNAL_BLOCKS - 256 + 1;
    let mut block = vec![0; BLOCK];
    block[..12].copy_from_slice(&[9, 0, 8, 0, 0, 0, 0, 0, 8, 0, 0, 0]);
    let ring = image.at;
    image.device.write_at((JOURNAL + u64::from(ring)) * BLOCK as u64, &block).unwrap();
    let result = replay_to_device(&image.device, &Options::default());
    assert!(matches!(result, Err(Error::FastCommits { tid }) if tid.raw() == 8), "{result:?}");
    // Fast-commit records of an older transaction do not count. The replay empties the log and
    // clears the feature bit of fast commits.
    block[8] = 7;
    image.device.write_at((JOURNAL + u64::from(ring)) * BLOCK as u64, &block).unwrap();
    replay(&image, &Options::default());
    assert_eq!(read_journal_superblock(&image.device).s_feature_incompat.get(), 0x10);
}

#[test]
fn the_copy_of_the_map_in_the_superblock_stands_in() {
    let mut image = Image::new(v3(), 1, 7);
    image.transaction(&[(2000, 1)]);
    let mut inode = [0; 128];
    image.device.read_at(5 * BLOCK as u64 + 7 * 128, &mut inode).unwrap();
    let mut sb = superblock();
    sb.s_jnl_backup_type = 1;
    for (word, bytes) in sb.s_jnl_blocks.iter_mut().zip(inode[40..100].chunks_exact(4)) {
        *word = u32::from_le_bytes(bytes.try_into().unwrap()).into();
    }
    sb.s_jnl_blocks[16] = (JOURNAL_BLOCKS * BLOCK as u32).into();
    image.write_superblock(&sb);
    image.device.write_zeroes(5 * BLOCK as u64, BLOCK as u64).unwrap();
    let report = replay(&image, &Options::default());
    assert_eq!(report.before.source.unwrap().name(), "superblock-backup");
    assert_eq!(byte(&image.device, 2000), 1);
}

/// The group descriptor on the device is wrong: it puts a bitmap into the journal. The log holds
/// the right descriptor, and is replayed.
#[test]
fn a_log_with_the_right_descriptor_is_replayed() {
    let mut image = Image::new(v3(), 1, 7);
    let mut right = vec![0; BLOCK];
    image.device.read_at(2 * BLOCK as u64, &mut right).unwrap();
    let mut wrong = RawGroupDesc::zeroed();
    wrong.set_inode_table(BlockNr::new(5));
    wrong.set_block_bitmap(BlockNr::new(JOURNAL + 700));
    image.device.write_at(2 * BLOCK as u64, &wrong.as_bytes()[..32]).unwrap();
    image.blocks(&[(2, right.clone())], 0);
    image.commit(0);
    replay(&image, &Options::default());
    let mut now = vec![0; BLOCK];
    image.device.read_at(2 * BLOCK as u64, &mut now).unwrap();
    assert!(now == right);
}

#[test]
fn a_journal_on_metadata_is_refused() {
    let refused = |image: &Image| match replay_to_device(&image.device, &Options::default()) {
        Err(Error::Disk(blockyard_disk::Error::Corrupt(found))) => found.kind,
        other => panic!("{other:?}"),
    };
    let journal = |n: u64| BlockNr::new(JOURNAL + n);
    let edits: [fn(&mut RawGroupDesc, BlockNr); 2] =
        [|raw, block| raw.set_block_bitmap(block), |raw, block| raw.set_inode_bitmap(block)];
    for edit in edits {
        let image = Image::new(v3(), 1, 7);
        let mut descriptor = RawGroupDesc::zeroed();
        descriptor.set_inode_table(BlockNr::new(5));
        edit(&mut descriptor, journal(700));
        image.device.write_at(2 * BLOCK as u64, &descriptor.as_bytes()[..32]).unwrap();
        assert_eq!(refused(&image), CorruptionKind::JournalMapping);
        let checked = Options { on_damage: OnDamage::ReplayGood, ..Options::default() };
        replay_to_device(&image.device, &checked).unwrap();
        assert!(inspect(&image.device).is_err(), "and it must not be written to afterwards");
    }
    // An inode table whose last block is in the journal. It begins 15 blocks before the journal and
    // has 16 blocks: 128 inodes of 128 bytes. The journal's inode is in it.
    let image = Image::new(v3(), 1, 7);
    let mut slot = [0; 128];
    image.device.read_at(5 * BLOCK as u64 + 7 * 128, &mut slot).unwrap();
    image.device.write_at((JOURNAL - 15) * BLOCK as u64 + 7 * 128, &slot).unwrap();
    let mut descriptor = RawGroupDesc::zeroed();
    descriptor.set_inode_table(BlockNr::new(JOURNAL - 15));
    image.device.write_at(2 * BLOCK as u64, &descriptor.as_bytes()[..32]).unwrap();
    assert_eq!(refused(&image), CorruptionKind::JournalMapping);
}

/// Cuts the power during a recovery. From each crash state, a second recovery makes the same image,
/// unless it refuses because a superblock is torn.
#[test]
fn a_cut_during_recovery_is_harmless() {
    for errno in [0, 5] {
        let mut image = Image::new(v3(), JOURNAL_BLOCKS - 5, 7);
        let mut logged = superblock();
        logged.s_mnt_count = 9.into();
        for n in 0..4u8 {
            image.revoke(&[3000 + u64::from(n)]);
            image.transaction(&[(2000, n), (2001 + 2 * u64::from(n), n + 1), (3000 + u64::from(n), n)]);
        }
        let (_, crc) = image.blocks(&[(1, logged.as_bytes().to_vec())], !0);
        image.commit(crc);
        image.journal.s_errno = errno.into();
        image.write_journal_superblock();

        let recorder = RecorderDevice::new(OverlayDevice::new(&image.device));
        replay_to_device(&recorder, &Options::default()).unwrap();
        let expected = content(&recorder);
        let log = recorder.log();
        let plan = CrashPlan { subsets_max: 10, ..CrashPlan::default() };
        let mut states = 0;
        for state in log.crash_states(&plan) {
            let cut = OverlayDevice::new(&image.device);
            state.build(&log, &cut).unwrap();
            // Each superblock is written as two sectors. If only one of them arrives, the second
            // recovery may refuse the superblock.
            if let Err(error) = replay_to_device(&cut, &Options::default()) {
                assert!(
                    matches!(error, Error::Disk(_)) && state.steps.iter().any(|step| step.sectors.is_some())
                );
                continue;
            }
            assert!(content(&cut) == expected, "errno {errno}, {state}");
            states += 1;
        }
        assert!(states > 40, "{states} states");
    }
}

/// Changes random bytes in the journal, the superblock, the group descriptor and the first block of
/// the inode table. Recovery always returns, and in some rounds it succeeds.
#[test]
fn mutated_journals_never_panic_or_hang() {
    let mut seed = blockyard_testkit::seed(0x7EC0);
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    let rounds = if blockyard_testkit::full_matrix() { 20_000 } else { 1500 };
    let mut replayed = 0;
    for round in 0..rounds {
        let features = all_formats()[round % 7];
        let mut image = Image::new(features, (random() % 1000) as u32 + 1, random() as u32);
        for n in 0..3 {
            image.revoke(&[2000 + n, 2007]);
            image.transaction(&[(2000 + n, 1), (1, 2), (2005, 3)]);
        }
        let areas = [(JOURNAL, 1u64), (JOURNAL + 1, u64::from(JOURNAL_BLOCKS) - 1), (1, 1), (2, 1), (5, 1)];
        for _ in 0..=random() % 4 {
            let (first, count) = areas[(random() % 5) as usize];
            let place =
                first * BLOCK as u64 + random() % if first == JOURNAL { 96 } else { count * BLOCK as u64 };
            image.device.write_at(place, &[random() as u8]).unwrap();
        }
        // The checksum of the journal's superblock is corrected: a wrong one would end many rounds
        // early.
        let mut journal = read_journal_superblock(&image.device);
        journal.seal();
        image.device.write_at(JOURNAL * BLOCK as u64, journal.as_bytes()).unwrap();
        let options = Options { on_damage: OnDamage::ReplayGood, unflagged: Unflagged::Replay };
        replayed += usize::from(replay_into_overlay(&image.device, &options).is_ok());
    }
    assert!(replayed > 0, "some rounds must reach the end");
}
