#pragma once

#include <span>
#include <string>

/** @file
 * Whose code runs: the functions of this program by address, from its own symbol table.
 */
namespace evix::test {

/** Reads the table; to be called once, before threads and forks. */
void load_symbols();

enum class Owner { library, simulator, test, other };

/** Of the innermost frame that is of neither the language's library nor GoogleTest. */
Owner owner_of(std::span<void* const> frames);

/** The same of the outermost: whose thread it is. */
Owner outermost_owner_of(std::span<void* const> frames);

/** One function a line, innermost first. */
std::string describe(std::span<void* const> frames);

/** The frames of the caller, innermost first. */
std::span<void* const> frames_here(std::span<void*> room);

}  // namespace evix::test
