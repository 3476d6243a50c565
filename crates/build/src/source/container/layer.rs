//! One layer of a container image: an archive that is applied over the layers below it.

use super::choice::Descriptor;
use super::digest::Digest;
use super::{Spool, Staging, Store};
use crate::error::Result;
use crate::source::archive::{CHUNK, Reading, decompressed};
use std::io::{self, BufRead, BufReader};

/// A layer: where it is stored, and its digest.
pub(super) struct Layer {
    path: Vec<u8>,
    digest: Digest,
    /// Whether the digest is that of the uncompressed archive.
    is_of_archive: bool,
}

impl Layer {
    /// A layer of an OCI manifest.
    pub(super) fn of_oci(descriptor: &Descriptor) -> std::result::Result<Self, String> {
        let (kind, path) = (&descriptor.media_type, descriptor.path()?);
        if kind.contains("encrypted") || !(kind.is_empty() || kind.contains("tar")) {
            return Err(format!(
                "a layer of type {kind}, which is not an archive; only archives can be unpacked"
            ));
        }
        Ok(Self { path, digest: descriptor.digest(), is_of_archive: false })
    }

    /// A layer of a Docker archive, with its digest from the configuration.
    pub(super) fn of_docker(path: &str, digest: &str) -> std::result::Result<Self, String> {
        let digest = Digest(digest.to_owned());
        digest.parts()?;
        Ok(Self { path: path.as_bytes().to_vec(), digest, is_of_archive: true })
    }

    /// Applies the layer over the previous ones. The digest is computed during the read. If the
    /// stream can be read to its end, a wrong digest is reported rather than any other error, so
    /// that a damaged stream is not refused for what it appears to contain.
    pub(super) fn lay(&self, store: &Store<'_>, staging: &mut Staging, spool: &mut Spool) -> Result<()> {
        let refused = |reason: String| store.refused(&self.path, reason);
        let failed = |error: io::Error| refused(error.to_string());
        let name = store.0.host_path(&self.path);
        staging.begin(&name);
        let content = store.open(&self.path)?;
        let mut reading = Reading { staging, spool, name: &name, is_layer: true };
        let (laid, checked) = if self.is_of_archive {
            let lay = |archive: &mut dyn BufRead| {
                let mut hashing = self.digest.hashing(archive)?;
                let laid = reading.entries(&mut BufReader::with_capacity(CHUNK, &mut hashing));
                Ok((laid, self.digest.check_rest(hashing)))
            };
            let content = BufReader::with_capacity(CHUNK, content);
            decompressed(content, lay).map_err(failed)?.map_err(refused)?
        } else {
            let mut hashing = self.digest.hashing(content).map_err(refused)?;
            let laid = reading.all(&mut hashing);
            (laid, self.digest.check_rest(hashing))
        };
        match checked {
            Ok(compared) => compared.map_err(refused).and(laid),
            Err(error) => laid.and(Err(failed(error))),
        }
    }
}
