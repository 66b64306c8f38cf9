//! The primitives of the handshake and the records of [`secure`](super::secure): X25519, AES-256-GCM and SHA-256.
//!
//! `snow` brings implementations of all three, and builds them only beside ChaCha20-Poly1305, which would be a second
//! version of a crate that is here already. So these are `curve25519-dalek`, `aes-gcm` and `sha2` themselves; here is
//! which bytes they take, as the Noise protocol lays down.

use aes_gcm::aead::AeadInPlace;
use aes_gcm::{AeadCore, Aes256Gcm, Key, KeyInit, Nonce, Tag};
use curve25519_dalek::MontgomeryPoint;
use sha2::{Digest, Sha256};
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};

/// The bytes of a key, whether it is for the cipher or one of a pair.
const KEY_BYTES: usize = 32;

/// The bytes of a mark, which only one with the key can make.
pub(super) const TAG_BYTES: usize = 16;

/// The primitives that the pattern of [`secure`](super::secure) names.
pub(super) struct Primitives;

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(System))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        (*choice == DHChoice::Curve25519).then(|| Box::<Pair>::default() as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        (*choice == HashChoice::SHA256).then(|| Box::<Sha>::default() as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        let without_key = || AesGcm(Aes256Gcm::new(&Key::<Aes256Gcm>::default()));
        (*choice == CipherChoice::AESGCM).then(|| Box::new(without_key()) as Box<dyn Cipher>)
    }
}

/// Random bytes of the operating system.
struct System;

impl Random for System {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        getrandom::fill(bytes).map_err(|_| Error::Rng)
    }
}

/// A pair of keys of X25519.
#[derive(Default)]
struct Pair {
    private: [u8; KEY_BYTES],
    public: [u8; KEY_BYTES],
}

impl Pair {
    fn of(private: [u8; KEY_BYTES]) -> Self {
        let public = MontgomeryPoint::mul_base_clamped(private).to_bytes();
        Self { private, public }
    }
}

impl Dh for Pair {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    fn set(&mut self, private: &[u8]) {
        *self = Self::of(private.try_into().expect("a key has its length"));
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), Error> {
        let mut private = [0; KEY_BYTES];
        random.try_fill_bytes(&mut private)?;
        *self = Self::of(private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.private
    }

    fn dh(&self, theirs: &[u8], out: &mut [u8]) -> Result<(), Error> {
        // What follows may be room for longer keys.
        let theirs = theirs.first_chunk().copied().ok_or(Error::Dh)?;
        let out = out.get_mut(..KEY_BYTES).ok_or(Error::Dh)?;
        let shared = MontgomeryPoint(theirs).mul_clamped(self.private);
        out.copy_from_slice(shared.as_bytes());
        Ok(())
    }
}

#[derive(Default)]
struct Sha(Sha256);

impl Hash for Sha {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0.reset();
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..self.hash_len()].copy_from_slice(&self.0.finalize_reset());
    }
}

struct AesGcm(Aes256Gcm);

/// The number of a message as a nonce: 32 bits of zeros, and the number with its largest byte first.
fn nonce(number: u64) -> Nonce<<Aes256Gcm as AeadCore>::NonceSize> {
    let mut nonce = Nonce::default();
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    nonce
}

impl Cipher for AesGcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.0 = Aes256Gcm::new(key.into());
    }

    fn encrypt(&self, number: u64, beside: &[u8], content: &[u8], out: &mut [u8]) -> usize {
        let len = content.len();
        out[..len].copy_from_slice(content);
        let tag = self
            .0
            .encrypt_in_place_detached(&nonce(number), beside, &mut out[..len]);
        let tag = tag.expect("messages of Noise are shorter than AES-GCM allows");
        out[len..len + TAG_BYTES].copy_from_slice(&tag);
        len + TAG_BYTES
    }

    fn decrypt(
        &self,
        number: u64,
        beside: &[u8],
        sealed: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let (sealed, tag) = sealed
            .split_last_chunk::<TAG_BYTES>()
            .ok_or(Error::Decrypt)?;
        let out = out.get_mut(..sealed.len()).ok_or(Error::Decrypt)?;
        out.copy_from_slice(sealed);
        let tag = Tag::from_slice(tag);
        let opened = self
            .0
            .decrypt_in_place_detached(&nonce(number), beside, out, tag);
        opened.map_err(|_| Error::Decrypt)?;
        Ok(sealed.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cipher(key: u8) -> Box<dyn Cipher> {
        let mut cipher = Primitives
            .resolve_cipher(&CipherChoice::AESGCM)
            .expect("it is here");
        cipher.set(&[key; 32]);
        cipher
    }

    #[test]
    fn what_is_sealed_opens_under_the_same_key_number_and_context_alone() {
        let mut sealed = [0; 5 + TAG_BYTES];
        assert_eq!(
            cipher(1).encrypt(7, b"beside", b"hello", &mut sealed),
            sealed.len()
        );
        let mut out = [0; 5 + TAG_BYTES];
        let len = cipher(1)
            .decrypt(7, b"beside", &sealed, &mut out)
            .expect("the same");
        assert_eq!(&out[..len], b"hello");
        for (key, number, beside) in [(2, 7, &b"beside"[..]), (1, 8, b"beside"), (1, 7, b"")] {
            assert!(
                cipher(key)
                    .decrypt(number, beside, &sealed, &mut out)
                    .is_err()
            );
        }
        for at in 0..sealed.len() {
            let mut changed = sealed;
            changed[at] ^= 1;
            assert!(cipher(1).decrypt(7, b"beside", &changed, &mut out).is_err());
        }
        assert!(
            cipher(1)
                .decrypt(7, b"beside", &sealed[..15], &mut out)
                .is_err()
        );
        assert!(
            cipher(1)
                .decrypt(7, b"beside", &sealed, &mut [0; 4])
                .is_err()
        );
    }

    /// The law that the Noise protocol has for nonces of AES-GCM.
    #[test]
    fn numbers_are_nonces_with_their_largest_byte_first() {
        let expected = [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(nonce(0x0102_0304_0506_0708)[..], expected);
    }

    /// The first case with a key of 256 bits of the specification of GCM, nothing under a key of zeros; the
    /// first round of RFC 7748, 5.2, which multiplies the base point with 9; and the hash of `abc` of FIPS 180.
    #[test]
    fn published_cases_come_out() {
        let digits = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        let mut out = [0; 32];
        let mut pair = Primitives
            .resolve_dh(&DHChoice::Curve25519)
            .expect("it is here");
        let nine: [u8; 32] = std::array::from_fn(|at| if at == 0 { 9 } else { 0 });
        pair.set(&nine);
        pair.dh(&nine, &mut out).expect("a point");
        let once = "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079";
        assert_eq!([digits(pair.pubkey()), digits(&out)], [once, once]);
        let mut hash = Primitives
            .resolve_hash(&HashChoice::SHA256)
            .expect("it is here");
        hash.input(b"abc");
        hash.result(&mut out);
        assert_eq!(
            digits(&out),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let mut sealed = [0; TAG_BYTES];
        cipher(0).encrypt(0, b"", b"", &mut sealed);
        let digits: String = sealed.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digits, "530f8afbc74536b9a963b4f1c4cb738b");
    }
}
