//! Inode numbers that Linux 6.18 chose on two images, whose initial state is given here
//! (docs/behaviour/inode-allocation.md).

use blockyard_alloc::inode::{InodeConfig, InodeGroupFacts, top_name_hash};
use blockyard_disk::dirhash::HashSeed;
use blockyard_disk::geometry::GeometryFields;
use blockyard_disk::{BlockCount, BlockNr, Geometry};

use crate::replica::Replica;

const SEED_B: [u8; 16] =
    [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];

#[test]
fn names_hash_as_the_kernel_hashes_them() {
    let seeds = [HashSeed::new([0; 4]), HashSeed::from_bytes(SEED_B)];
    let table: [(&[u8], [u32; 2]); 6] = [
        (b"a", [0xd5fa_7d7a, 0x35dc_0cc4]),
        (b"home", [0xa46f_19a4, 0x1042_f356]),
        (b"usr", [0x8015_3bf2, 0x7405_7cf0]),
        (b"dir0000", [0xbf48_8276, 0xe803_03b4]),
        (&[b'x'; 33], [0xebd0_861e, 0x9a80_601e]),
        (b"\xc3\xa9t\xc3\xa9", [0xa69a_4d3a, 0xff32_9f74]),
    ];
    for (name, expected) in table {
        assert_eq!(seeds.map(|seed| top_name_hash(name, seed)), expected, "{name:?}");
    }
}

#[test]
fn the_whole_vector_on_flex_groups_of_eight() {
    let per_flex = [64073, 65131, 65392, 48486, 65392, 65392, 65131, 65391];
    // Of the free clusters, only the sum of each flex group matters.
    let free: Vec<u32> =
        per_flex.iter().flat_map(|&sum| [sum / 8 + sum % 8].into_iter().chain([sum / 8; 7])).collect();
    check(
        3,
        &free,
        &Expected {
            top: [3073, 1025, 3585, 513, 2049, 2561, 2050, 3074, 514, 2562],
            second: [515, 516, 517, 3586, 3587],
            files: [1026, 1027, 518, 3588, 3589, 12],
            var: "2563-2596, 3075-3110",
            srv: "2051-2550",
        },
    );
}

#[test]
fn the_whole_vector_without_flex_groups() {
    let free: Vec<u32> = (0..64)
        .map(|group| match group {
            0 => 7899,
            1 | 3 | 5 | 7 | 9 | 25 | 27 | 49 => 7913,
            30 | 31 => 0,
            32 => 8138,
            63 => 8173,
            _ => 8174,
        })
        .collect();
    check(
        0,
        &free,
        &Expected {
            top: [3457, 3201, 1409, 1537, 1473, 2817, 3329, 2433, 3073, 3841],
            second: [3074, 3075, 3076, 1410, 1411],
            files: [3202, 3203, 3077, 1412, 1413, 12],
            var: "3842-3844, 3905-3908, 3969-3972, 4033-4036, 13-14, 65-68, 129-132, 193-196, 257-260, 321-324, \
              385-388, 449-452, 513-517, 577-581, 641-645, 705-709, 769-773",
            srv: "3330-3392, 3458-3520, 3585-3648, 3845-3904, 261-320, 1281-1344, 3393-3456, 3521-3582",
        },
    );
}

struct Expected {
    top: [u32; 10],
    second: [u32; 5],
    files: [u32; 6],
    var: &'static str,
    srv: &'static str,
}

fn check(flex_bits: u32, free: &[u32], expected: &Expected) {
    let geometry = Geometry::new(GeometryFields {
        block_bits: 10,
        cluster_ratio_bits: 0,
        blocks_count: BlockCount::new(524_288),
        first_data_block: BlockNr::new(1),
        clusters_per_group: 8192,
        inodes_per_group: 64,
        inode_size: 256,
        flex_bits,
    })
    .unwrap();
    let facts: Vec<InodeGroupFacts> = (0..64)
        .map(|group| match group {
            0 => InodeGroupFacts { free_inodes: 53, used_dirs: 2, itable_unused: 53, inode_uninit: false },
            _ => InodeGroupFacts { free_inodes: 64, used_dirs: 0, itable_unused: 64, inode_uninit: true },
        })
        .collect();
    let seed = HashSeed::from_bytes(SEED_B);
    let mut replica = Replica::new(geometry, &facts, free, seed, InodeConfig::default());
    let root = Replica::ROOT;

    let top = ["bin", "etc", "home", "lib", "opt", "root", "srv", "tmp", "usr", "var"]
        .map(|name| directory(&mut replica, root, name));
    assert_eq!(top, expected.top);
    let [_, etc, home, _, _, _, srv, _, usr, var] = top;
    let second = [(usr, "bin"), (usr, "lib"), (usr, "share"), (home, "alice"), (home, "bob")]
        .map(|(parent, name)| directory(&mut replica, parent, name));
    assert_eq!(second, expected.second);
    let [usr_bin, _, _, alice, _] = second;
    let files =
        [(etc, "passwd"), (etc, "fstab"), (usr_bin, "ls"), (alice, "f1"), (alice, "f2"), (root, "rootfile")]
            .map(|(parent, name)| replica.create(parent, name, false).unwrap());
    assert_eq!(files, expected.files);
    let children: Vec<u32> = (0..70).map(|i| directory(&mut replica, var, &format!("d{i:02}"))).collect();
    assert_eq!(children, runs(expected.var));
    let files: Vec<u32> =
        (0..500).map(|i| replica.create(srv, &format!("f{i:03}"), false).unwrap()).collect();
    assert_eq!(files, runs(expected.srv));
}

/// Creates a directory, and charges its one block to the group of its block goal.
fn directory(replica: &mut Replica, parent: u32, name: &str) -> u32 {
    let inode = replica.create(parent, name, true).unwrap();
    replica.charge(inode, vec![replica.goal_group(inode)]);
    inode
}

/// The numbers in a text like `1-3, 7-9`.
fn runs(text: &str) -> Vec<u32> {
    text.split(", ")
        .flat_map(|run| {
            let (first, last) = run.split_once('-').expect("a run");
            first.trim().parse::<u32>().unwrap()..=last.trim().parse().unwrap()
        })
        .collect()
}
