//! Input format: 2 device bytes, 1 byte with the number of micro-operations, micro-operations of 4 bytes, instructions
//! of 16 bytes. Every byte sequence is a valid input.

use byoc_vta_machine::config::Config;

/// Parts of an input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Input {
    /// Device choice: one byte for geometry and features, one byte for memory depths.
    pub device: [u8; 2],
    /// Micro-operations in DRAM, at most 255.
    pub uops: Vec<u32>,
    /// Instructions, each in two 64-bit words.
    pub words: Vec<[u64; 2]>,
}

/// Bits of the first device byte; the two lowest bits select the block size.
const BATCH: u8 = 1 << 2;
const FIRST_REVISION: u8 = 1 << 3;
const FEW_UOPS: u8 = 1 << 4;
const NO_ACC_8BIT: u8 = 1 << 5;
const MUL: u8 = 1 << 6;
const DEFAULT_DEPTHS: u8 = 1 << 7;

impl Input {
    /// Parses bytes. Missing bytes are 0, and an incomplete instruction is ignored.
    pub fn parse(bytes: &[u8]) -> Input {
        let (header, rest) = bytes.split_at(bytes.len().min(3));
        let header_byte = |index: usize| header.get(index).copied().unwrap_or(0);
        let (uops, words) = rest.split_at(rest.len().min(4 * usize::from(header_byte(2))));
        let (uops, _) = uops.as_chunks();
        let (halves, _) = words.as_chunks();
        let (words, _) = halves.as_chunks::<2>();
        Input {
            device: [header_byte(0), header_byte(1)],
            uops: uops.iter().map(|word| u32::from_le_bytes(*word)).collect(),
            words: words.iter().map(|words| words.map(u64::from_le_bytes)).collect(),
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let uops = &self.uops[..self.uops.len().min(255)];
        let mut bytes = vec![self.device[0], self.device[1], uops.len() as u8];
        bytes.extend(uops.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(self.words.iter().flatten().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    /// Returns the device configuration, which is valid for every choice.
    pub fn config(&self) -> Config {
        let [flags, depth_bits] = self.device;
        let has_flag = |bit: u8| flags & bit != 0;
        let (log_block, log_batch) = (1 + u32::from(flags & 3), u32::from(has_flag(BATCH)));
        let depth_bits = |index: u32| u32::from(depth_bits >> (2 * index) & 3);
        let [uop, inp, wgt, acc] = match has_flag(DEFAULT_DEPTHS) {
            true => [13, 11, 10, 11],
            false => [6 + depth_bits(0), 4 + depth_bits(1), 2 + depth_bits(2), 5 + depth_bits(3)],
        };
        Config {
            hw_ver: if has_flag(FIRST_REVISION) { "0.0.1" } else { "0.0.2" }.into(),
            log_batch,
            log_block,
            log_uop_buff_size: uop + 2,
            log_inp_buff_size: inp + log_batch + log_block,
            log_wgt_buff_size: wgt + 2 * log_block,
            log_acc_buff_size: acc + log_batch + log_block + 2,
            uop_entries: has_flag(FEW_UOPS).then_some(3 << (uop - 2)),
            acc_8bit: Some(!has_flag(NO_ACC_8BIT)),
            mul: has_flag(MUL),
            ..Config::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Input;

    #[test]
    fn every_choice_is_a_valid_device() {
        for device_bits in 0..=u16::MAX {
            let input = Input { device: device_bits.to_le_bytes(), ..Input::default() };
            assert_eq!(input.config().check(), Ok(()), "{device_bits:#x}");
        }
    }

    #[test]
    fn parses_what_it_writes() {
        let input = Input { device: [7, 0xff], uops: vec![1, 0xffff_ffff], words: vec![[1, 2], [u64::MAX, 3]] };
        assert_eq!(Input::parse(&input.to_bytes()), input);
        assert_eq!(Input::parse(&[7]), Input { device: [7, 0], ..Input::default() });
    }
}
