//! One layer of an image of a container: an archive, laid over those below it.

use super::choice::Descriptor;
use super::{Spool, Staging, Store};
use crate::error::Result;
use crate::source::archive::{Reading, decompressed};
use sha2::digest::DynDigest;
use sha2::{Sha256, Sha512};
use std::io::{self, BufReader, Read};

/// A digest, as `sha256:` and hexadecimal digits.
#[derive(Clone)]
pub(super) struct Digest(pub(super) String);

impl Digest {
    fn parts(&self) -> std::result::Result<(&str, &str), String> {
        let parts = self.0.split_once(':');
        let known = parts.filter(|(kind, digits)| {
            let length = match *kind {
                "sha256" => 64,
                "sha512" => 128,
                _ => return false,
            };
            digits.len() == length && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        });
        known.ok_or_else(|| format!("the digest {:?}, which is none of sha256 or sha512", self.0))
    }

    /// Where an OCI layout keeps what has this digest.
    pub(super) fn path(&self) -> std::result::Result<Vec<u8>, String> {
        let (kind, digits) = self.parts()?;
        Ok(format!("blobs/{kind}/{digits}").into_bytes())
    }

    fn hasher(&self) -> std::result::Result<Box<dyn DynDigest>, String> {
        let (kind, _) = self.parts()?;
        Ok(if kind == "sha256" { Box::new(Sha256::default()) } else { Box::new(Sha512::default()) })
    }

    /// Compares what a stream holds.
    pub(super) fn check(&self, stream: impl Read) -> std::result::Result<(), String> {
        let mut hashing = Hashing { stream, hasher: self.hasher()? };
        io::copy(&mut hashing, &mut io::sink()).map_err(|error| error.to_string())?;
        self.compare(hashing.hasher)
    }

    fn compare(&self, hasher: Box<dyn DynDigest>) -> std::result::Result<(), String> {
        let (_, wanted) = self.parts()?;
        let found: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if found == wanted { Ok(()) } else { Err(format!("is damaged: its digest is {found}, not {wanted}")) }
    }
}

/// Hashes what is read.
struct Hashing<R> {
    stream: R,
    hasher: Box<dyn DynDigest>,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(into)?;
        self.hasher.update(&into[..n]);
        Ok(n)
    }
}

/// A layer: where it is stored, and its digest.
pub(super) struct Layer {
    path: Vec<u8>,
    digest: Digest,
    /// The digest is that of the archive without compression.
    is_of_archive: bool,
}

impl Layer {
    /// A layer of an OCI manifest.
    pub(super) fn of_oci(descriptor: &Descriptor) -> std::result::Result<Self, String> {
        let (kind, path) = (&descriptor.media_type, descriptor.path()?);
        if kind.contains("encrypted") || !(kind.is_empty() || kind.contains("tar")) {
            return Err(format!(
                "a layer of type {kind}, which is no archive; only archives can be laid out"
            ));
        }
        Ok(Self { path, digest: descriptor.digest(), is_of_archive: false })
    }

    /// A layer of an archive of Docker, with its digest in the configuration.
    pub(super) fn of_docker(path: &str, digest: &str) -> std::result::Result<Self, String> {
        let digest = Digest(digest.to_owned());
        digest.parts()?;
        Ok(Self { path: path.as_bytes().to_vec(), digest, is_of_archive: true })
    }

    /// Lays the layer over those before it.
    pub(super) fn lay(&self, store: &Store<'_>, staging: &mut Staging, spool: &mut Spool) -> Result<()> {
        let refused = |reason: String| store.refused(&self.path, reason);
        let failed = |error: io::Error| refused(error.to_string());
        // Before anything is believed of it: a damaged stream would be refused for what it seems to hold.
        let content = BufReader::new(store.open(&self.path)?);
        if self.is_of_archive {
            self.digest.check(decompressed(content).map_err(failed)?).map_err(refused)?;
        } else {
            self.digest.check(content).map_err(refused)?;
        }
        let name = store.0.host_path(&self.path);
        staging.begin(&name);
        Reading { staging, spool, name: &name, is_layer: true }.all(store.open(&self.path)?)
    }
}
