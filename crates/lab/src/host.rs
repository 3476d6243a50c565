//! A host with a page cache in front of a disk: which of a program's reads reach the disk.

use std::collections::HashSet;

use blockyard_device::modelled::Request;

/// Size of a page of the cache in bytes.
const PAGE: u64 = 4096;
/// Most bytes in one request to the disk: the read-ahead.
const READ_AHEAD: u64 = 128 << 10;

/// The pages in the host's cache. Nothing is evicted: this is for programs that read less than fits
/// in the host's memory.
#[derive(Default)]
pub(crate) struct Host {
    cached: HashSet<u64>,
}

impl Host {
    /// Turns reads (offset and length in bytes) into requests to the disk. Only pages that are not
    /// cached are read; consecutive pages become one request, up to the read-ahead.
    pub(crate) fn asked_of_disk(&mut self, reads: impl IntoIterator<Item = (u64, u64)>) -> Vec<Request> {
        let mut asked: Vec<Request> = Vec::new();
        for (offset, length) in reads {
            for page in offset / PAGE..(offset + length).div_ceil(PAGE) {
                if !self.cached.insert(page) {
                    continue;
                }
                match asked.last_mut() {
                    Some(last) if last.end() == page * PAGE && last.length < READ_AHEAD => {
                        last.length += PAGE
                    }
                    _ => asked.push(Request::read(page * PAGE, PAGE)),
                }
            }
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_asked_for_pages_once_and_for_neighbours_together() {
        let mut host = Host::default();
        assert_eq!(host.asked_of_disk([(1024, 1024)]), [Request::read(0, 4096)]);
        let asked = host.asked_of_disk([(0, 8192), (8192, 1 << 20), (4096, 4096), (3 << 20, 4096)]);
        assert_eq!(asked[0], Request::read(4096, 128 << 10));
        assert_eq!(asked.last(), Some(&Request::read(3 << 20, 4096)));
        let bytes: u64 = asked.iter().map(|request| request.length).sum();
        assert_eq!(bytes, (1 << 20) + 2 * 4096);
    }
}
