#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace annulus {

struct ImportOptions {
  std::filesystem::path output;  // the data file to make (see dataset.h for its format)
  std::string format = "idx";
  std::filesystem::path source;      // a folder
  std::vector<std::string> classes;  // names by label; "0", "1", ... where empty
};

// Makes a data file. The file appears whole or not at all: it is written under another name and renamed.
// "idx": the source folder holds {train,t10k}-{images-idx3,labels-idx1}-ubyte, gzip-compressed (.gz) or not, the
// format of the MNIST database (http://yann.lecun.com/exdb/mnist). Prints what it made.
void import_data(const ImportOptions& options);

}  // namespace annulus
