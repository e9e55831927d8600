//! The name that git gives to the content of a file, by which the hub tells whether it has changed.
//!
//! It is a SHA-1, which protects nothing here: whoever pushes may change the file anyway.

/// Hashes a file as it is read.
#[derive(Debug)]
pub(super) struct GitBlob {
    state: [u32; 5],
    block: Vec<u8>,
    length: u64,
}

impl GitBlob {
    /// Begins with the size of the file.
    pub(super) fn new(size: u64) -> Self {
        let state = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
        let mut blob = Self { state, block: Vec::with_capacity(64), length: 0 };
        blob.update(format!("blob {size}\0").as_bytes());
        blob
    }

    /// Adds the next bytes.
    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        self.length += bytes.len() as u64;
        while !bytes.is_empty() {
            let (next, rest) = bytes.split_at(bytes.len().min(64 - self.block.len()));
            self.block.extend_from_slice(next);
            bytes = rest;
            if self.block.len() == 64 {
                self.compress();
                self.block.clear();
            }
        }
    }

    /// The hash, in hexadecimal digits.
    pub(super) fn finish(mut self) -> String {
        let bits = self.length * 8;
        self.update(&[0x80]);
        while self.block.len() != 56 {
            self.update(&[0]);
        }
        self.update(&bits.to_be_bytes());
        self.state.iter().map(|word| format!("{word:08x}")).collect()
    }

    fn compress(&mut self) {
        let mut words = [0u32; 80];
        for (word, bytes) in words.iter_mut().zip(self.block.chunks_exact(4)) {
            *word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        }
        for place in 16..80 {
            words[place] =
                (words[place - 3] ^ words[place - 8] ^ words[place - 14] ^ words[place - 16]).rotate_left(1);
        }
        let [mut a, mut b, mut c, mut d, mut e] = self.state;
        for (place, word) in words.into_iter().enumerate() {
            let (mixed, constant) = match place {
                0..20 => (b & c | !b & d, 0x5a82_7999),
                20..40 => (b ^ c ^ d, 0x6ed9_eba1),
                40..60 => (b & c | b & d | c & d, 0x8f1b_bcdc),
                _ => (b ^ c ^ d, 0xca62_c1d6u32),
            };
            let next = a
                .rotate_left(5)
                .wrapping_add(mixed)
                .wrapping_add(e)
                .wrapping_add(constant)
                .wrapping_add(word);
            (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
        }
        for (word, added) in self.state.iter_mut().zip([a, b, c, d, e]) {
            *word = word.wrapping_add(added);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(bytes: &[u8]) -> String {
        let mut blob = GitBlob::new(bytes.len() as u64);
        blob.update(bytes);
        blob.finish()
    }

    #[test]
    fn names_are_those_of_git() {
        // As `git hash-object --stdin` prints them.
        assert_eq!(name(b""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(name(b"hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
        assert_eq!(name(&[b'a'; 1000]), "a50be72b20f0e3f078d252e8e56b11b4bec67509");
    }

    proptest::proptest! {
        #[test]
        fn it_does_not_matter_how_a_file_is_cut_into_blocks(bytes: Vec<u8>, cut in 0usize..200) {
            let cut = cut.min(bytes.len());
            let mut blob = GitBlob::new(bytes.len() as u64);
            blob.update(&bytes[..cut]);
            blob.update(&bytes[cut..]);
            proptest::prop_assert_eq!(blob.finish(), name(&bytes));
        }
    }
}
