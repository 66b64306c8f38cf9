//! Records of TFRecord: length, checksum of the length, bytes, checksum of the bytes.

/// The number that is added to a checksum, so that one of data with checksums in it is as good as any.
const MASK: u32 = 0xa282_ead8;

/// Writes a record of `message` into `frame`, in place of what it held.
pub(super) fn frame(message: &[u8], frame: &mut Vec<u8>) {
    let length = (message.len() as u64).to_le_bytes();
    frame.clear();
    frame.extend(length);
    frame.extend(masked(&length).to_le_bytes());
    frame.extend(message);
    frame.extend(masked(message).to_le_bytes());
}

fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_framed_as_others_frame_it() {
        // The first record of every event file of TensorFlow, but for its time: `file_version` of 24 bytes. Its length
        // and the checksum of that are the well-known beginning of such files.
        let mut found = Vec::new();
        frame(&[0; 24], &mut found);
        assert_eq!(
            found[..12],
            [0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22]
        );
        assert_eq!(found.len(), 24 + 16);
    }
}
