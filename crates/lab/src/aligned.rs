//! Memory for direct I/O, with an alignment that every device of the lab accepts.

/// Alignment of the memory in bytes.
const ALIGNMENT: usize = 4096;

/// Aligned memory.
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// Memory of `length` zero bytes. (A sparse memory device does not store zeroes.)
    pub(crate) fn zeroes(length: usize) -> Self {
        let memory = vec![0; length + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Self { memory, start, length }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_any_length_is_aligned() {
        for length in [0, 1, 4096, 65_536] {
            let mut aligned = Aligned::zeroes(length);
            aligned.bytes_mut().fill(7);
            let bytes = aligned.bytes();
            assert!(bytes.len() == length && bytes.iter().all(|&byte| byte == 7));
            assert_eq!(bytes.as_ptr().align_offset(4096), 0);
        }
    }
}
