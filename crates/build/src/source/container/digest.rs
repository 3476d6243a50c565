//! Digests, by which parts of an image are found and verified.

use sha2::{Digest as _, Sha256, Sha512};
use std::io::{self, Read};

/// A digest, as `sha256:` or `sha512:` and hexadecimal digits.
#[derive(Clone)]
pub(super) struct Digest(pub(super) String);

impl Digest {
    pub(super) fn parts(&self) -> std::result::Result<(&str, &str), String> {
        let parts = self.0.split_once(':');
        let known = parts.filter(|(kind, digits)| {
            let length = match *kind {
                "sha256" => 64,
                "sha512" => 128,
                _ => return false,
            };
            digits.len() == length && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        });
        known.ok_or_else(|| format!("the digest {:?}, which is not a valid sha256 or sha512 digest", self.0))
    }

    /// The path in an OCI layout for an object with this digest.
    pub(super) fn path(&self) -> std::result::Result<Vec<u8>, String> {
        let (kind, digits) = self.parts()?;
        Ok(format!("blobs/{kind}/{digits}").into_bytes())
    }

    fn hasher(&self) -> std::result::Result<Hasher, String> {
        let (kind, _) = self.parts()?;
        Ok(if kind == "sha256" { Hasher::Sha256(Sha256::new()) } else { Hasher::Sha512(Sha512::new()) })
    }

    /// Wraps a stream to hash what is read from it.
    pub(super) fn hashing<R>(&self, stream: R) -> std::result::Result<Hashing<R>, String> {
        Ok(Hashing { stream, hasher: self.hasher()?, has_failed: false })
    }

    /// Verifies the content of a stream.
    pub(super) fn check(&self, stream: impl Read) -> std::result::Result<(), String> {
        let mut hashing = self.hashing(stream)?;
        io::copy(&mut hashing, &mut io::sink()).map_err(|error| error.to_string())?;
        self.compare(hashing.hasher)
    }

    /// Verifies a partly read stream, after reading the rest of it. The outer error means that the
    /// stream could not be read to its end.
    pub(super) fn check_rest(
        &self,
        mut hashing: Hashing<impl Read>,
    ) -> io::Result<std::result::Result<(), String>> {
        if hashing.has_failed {
            return Err(io::Error::other("cannot be read to its end"));
        }
        io::copy(&mut hashing, &mut io::sink())?;
        Ok(self.compare(hashing.hasher))
    }

    fn compare(&self, hasher: Hasher) -> std::result::Result<(), String> {
        let (_, wanted) = self.parts()?;
        let found: String = hasher.finish().iter().map(|byte| format!("{byte:02x}")).collect();
        if found == wanted { Ok(()) } else { Err(format!("is damaged: its digest is {found}, not {wanted}")) }
    }
}

enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Self::Sha256(hasher) => hasher.finalize().to_vec(),
            Self::Sha512(hasher) => hasher.finalize().to_vec(),
        }
    }
}

/// Hashes what is read.
pub(super) struct Hashing<R> {
    stream: R,
    hasher: Hasher,
    /// Reading the stream has failed.
    has_failed: bool,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(into);
        self.has_failed |= read.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
        let n = read?;
        self.hasher.update(&into[..n]);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest of `abc` (FIPS 180-2).
    const ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    /// A stream that fails once all of its bytes have been read.
    struct Failing<'a>(&'a [u8]);

    impl Read for Failing<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            match self.0.read(into)? {
                0 => Err(io::Error::other("gone")),
                n => Ok(n),
            }
        }
    }

    #[test]
    fn what_follows_counts_and_what_cannot_be_read_is_not_passed() {
        let digest = Digest(ABC.to_owned());
        let after_one = |stream: &mut dyn Read| {
            let mut hashing = digest.hashing(stream).unwrap();
            hashing.read_exact(&mut [0]).unwrap();
            digest.check_rest(hashing)
        };
        assert_eq!(after_one(&mut &b"abc"[..]).unwrap(), Ok(()));
        assert!(after_one(&mut &b"abd"[..]).unwrap().unwrap_err().starts_with("is damaged"));
        assert_eq!(after_one(&mut Failing(b"abc")).unwrap_err().to_string(), "gone");
        let mut hashing = digest.hashing(Failing(b"abc")).unwrap();
        io::copy(&mut hashing, &mut io::sink()).unwrap_err();
        assert!(digest.check_rest(hashing).is_err());
    }
}
