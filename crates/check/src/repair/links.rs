//! Pass 4: link counts are set to the number of names. An inode without a name gets one, or is
//! cleared if it is empty.

use std::collections::BTreeSet;

use blockyard_device::DeviceError;
use blockyard_disk::{InodeNr, RoCompat};
use zerocopy::little_endian::{U16, U32};

use super::connect::{self, Connected};
use super::editor::Editor;
use super::inode;
use super::log::Cost;
use crate::code::Code;
use crate::finding::{Finding, Site, Unkept};

/// The most links that a directory counts before it stores 1 for "many".
const LINKS_MAX: u32 = 65_000;

/// Repairs what pass 4 found. `unkept` are records of findings that were dropped at a limit.
pub(crate) fn repair(
    ed: &mut Editor<'_, '_>,
    at: &Connected<'_>,
    findings: &[Finding],
    unkept: &[Unkept],
) -> Result<(), DeviceError> {
    let mut lost = Vec::new();
    // An inode that lost something in this repair was not empty.
    let cut: BTreeSet<InodeNr> = ed
        .log
        .actions
        .iter()
        .filter(|action| action.cost == Cost::Cut)
        .filter_map(|action| action.site.inode)
        .collect();
    let kept = findings.iter().filter_map(|finding| Some((finding.site.inode?, finding.code)));
    let others = unkept.iter().map(|found| (found.inode, found.code));
    for (number, code) in kept.chain(others) {
        match code {
            Code::UNATTACHED_EMPTY if !cut.contains(&number) && has_nothing(ed, number)? => {
                inode::clear(ed, number, code)?;
            }
            Code::UNATTACHED_EMPTY => lost.push(number.raw()),
            Code::UNATTACHED => lost.push(number.raw()),
            Code::DIR_NLINK_NEEDED => {
                ed.change_superblock(|sb| sb.set_ro_compat(sb.ro_compat() | RoCompat::DIR_NLINK))?;
                ed.add(code, Site::inode(number), Cost::Nothing, "feature dir_nlink set");
            }
            Code::LINK_COUNT | Code::DIR_LINK_COUNT_ONE => set_links(ed, at, number, code)?,
            _ => {}
        }
    }
    lost.sort_unstable();
    connect::attach(ed, at, &lost, Code::UNATTACHED)
}

/// Whether an inode has no blocks, no attribute block, and no size.
fn has_nothing(ed: &Editor<'_, '_>, number: InodeNr) -> Result<bool, DeviceError> {
    let slot = ed.slot(number)?;
    let raw = slot.raw();
    Ok(raw.i_blocks_lo.get() == 0 && ed.volume().file_acl(raw).raw() == 0 && raw.size() == 0)
}

fn set_links(
    ed: &mut Editor<'_, '_>,
    at: &Connected<'_>,
    number: InodeNr,
    code: Code,
) -> Result<(), DeviceError> {
    let geometry = &ed.volume().geometry;
    // Only a value inode gets here without a name. All attributes that refer to it count as one
    // link.
    let counted = at.facts.references(geometry, number).max(1);
    let directory = at.facts.kind(geometry, number).is_directory();
    let links = match u16::try_from(counted) {
        Ok(links) if !directory || counted <= LINKS_MAX => links,
        _ if directory => 1,
        _ => u16::MAX,
    };
    let mut slot = ed.slot(number)?;
    slot.raw_mut().i_links_count = U16::new(links);
    slot.raw_mut().i_dtime = U32::new(0);
    ed.put_slot(number, &mut slot)?;
    ed.add(code, Site::inode(number), Cost::Nothing, format!("i_links_count set to {links}"));
    Ok(())
}
