//! Container images: arbitrary manifests and layers are refused or give a tree.

#![no_main]

use blockyard_build::{Choice, Tree};
use blockyard_fuzz::{archive_of, sealed_headers};
use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};
use std::path::Path;

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unpack(files: &[(String, Vec<u8>)]) {
    let folder = std::env::temp_dir();
    let archive = archive_of(files);
    let Ok(tree) = Tree::read_archive(std::io::Cursor::new(archive), Path::new("image"), &folder) else { return };
    if tree.is_container_image() {
        let _ = tree.unpack_container(&Choice::default(), &folder).map(|unpacked| unpacked.names());
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&cut, rest)) = data.split_first() else { return };
    let (text, layer) = rest.split_at(rest.len() * usize::from(cut) / 256);
    let layer = sealed_headers(layer);
    let blob = |bytes: &[u8]| (format!("blobs/sha256/{}", digest(bytes)), bytes.to_vec());
    let mark = ("oci-layout".to_owned(), b"{}".to_vec());
    let config = br#"{"os":"linux","architecture":"amd64"}"#.to_vec();
    let layers = [&layer[..], &layer[..layer.len() / 1024 * 512]].map(|layer| {
        format!(
            r#"{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:{}"}}"#,
            digest(layer)
        )
    });
    let manifest =
        format!(r#"{{"config":{{"digest":"sha256:{}"}},"layers":[{}]}}"#, digest(&config), layers.join(","));
    let index = format!(r#"{{"manifests":[{{"digest":"sha256:{}"}}]}}"#, digest(manifest.as_bytes()));
    let half = blob(&layer[..layer.len() / 1024 * 512]);
    // Two layers: the whole layer, and half of it on top.
    unpack(&[
        mark.clone(),
        ("index.json".to_owned(), index.into_bytes()),
        blob(&config),
        blob(manifest.as_bytes()),
        blob(&layer),
        half,
    ]);
    // Arbitrary text as the index of a layout, as the manifest that a valid index names, and as the
    // list of images in the format of `docker save` (`manifest.json`).
    unpack(&[mark.clone(), ("index.json".to_owned(), text.to_vec())]);
    let index = format!(r#"{{"manifests":[{{"digest":"sha256:{}"}}]}}"#, digest(text));
    unpack(&[mark, ("index.json".to_owned(), index.into_bytes()), blob(text), blob(&layer)]);
    unpack(&[("manifest.json".to_owned(), text.to_vec()), ("c".to_owned(), config), ("l".to_owned(), layer)]);
});
