#include "src/text/tokenizer.h"

#include "kernels/base/error.h"

using namespace annulus;

// A serialized tokenizer and a text, divided by a zero byte. Without one, the text is of the tokenizer of bytes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string input(data, data + size);
  const std::size_t zero = input.find('\0');
  try {
    const Tokenizer tokenizer = zero == std::string::npos ? bytes_tokenizer() : Tokenizer::parse(input.substr(0, zero));
    const std::string text = zero == std::string::npos ? input : input.substr(zero + 1);
    const std::vector<std::int32_t> tokens = tokenizer.encode(text);
    for (const std::int32_t token : tokens)
      if (token < 0 || static_cast<std::size_t>(token) >= tokenizer.vocabulary()) __builtin_trap();
    if (tokenizer.decode(tokens) != text) __builtin_trap();
    if (Tokenizer::parse(tokenizer.serialized()).serialized() != tokenizer.serialized()) __builtin_trap();
    // The same in two pieces.
    TextEncoder encoder(tokenizer);
    std::vector<std::int32_t> again;
    encoder.add(std::string_view(text).substr(0, text.size() / 2), again);
    encoder.add(std::string_view(text).substr(text.size() / 2), again);
    encoder.finish(again);
    again.pop_back();
    if (again != tokens) __builtin_trap();
  } catch (const Error&) {
  }
  return 0;
}
