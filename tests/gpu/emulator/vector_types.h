#pragma once

// CUDA's small vectors, with its names and alignments.

template <class T>
struct EmulatedVector1 {
  T x;
};
template <class T>
struct alignas(2 * sizeof(T)) EmulatedVector2 {
  T x, y;
};
template <class T>
struct EmulatedVector3 {
  T x, y, z;
};
template <class T>
struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) EmulatedVector4 {
  T x, y, z, w;
};

#define EMULATED_VECTORS(name, type)                                 \
  using name##1 = EmulatedVector1<type>;                             \
  using name##2 = EmulatedVector2<type>;                             \
  using name##3 = EmulatedVector3<type>;                             \
  using name##4 = EmulatedVector4<type>;                             \
  constexpr name##1 make_##name##1(type x) {                         \
    return {x};                                                      \
  }                                                                  \
  constexpr name##2 make_##name##2(type x, type y) {                 \
    return {x, y};                                                   \
  }                                                                  \
  constexpr name##3 make_##name##3(type x, type y, type z) {         \
    return {x, y, z};                                                \
  }                                                                  \
  constexpr name##4 make_##name##4(type x, type y, type z, type w) { \
    return {x, y, z, w};                                             \
  }

EMULATED_VECTORS(char, signed char)
EMULATED_VECTORS(uchar, unsigned char)
EMULATED_VECTORS(short, short)
EMULATED_VECTORS(ushort, unsigned short)
EMULATED_VECTORS(int, int)
EMULATED_VECTORS(uint, unsigned)
EMULATED_VECTORS(longlong, long long)
EMULATED_VECTORS(ulonglong, unsigned long long)
EMULATED_VECTORS(float, float)
EMULATED_VECTORS(double, double)
#undef EMULATED_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
